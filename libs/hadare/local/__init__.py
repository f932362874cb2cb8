"""A whole cluster on one machine: its processes, its demonstration, and what can be seen of both."""
