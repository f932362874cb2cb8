"""Measurements that anybody can repeat: `hadare bench …`."""
