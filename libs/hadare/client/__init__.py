"""HadarE for Python programs: submit jobs, follow them, fetch their weights."""

from hadare.client.client import HadareClient, connect

__all__ = ["HadareClient", "connect"]
