"""The allocator: rounds, plans and leases."""
