"""The node agent: devices, leases and the processes that train."""
