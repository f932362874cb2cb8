"""The training side: what user code sees, the processes that forks run in, and the arithmetic of consolidation.

Importing this package imports no torch; its modules do, so that only agents and the tracker's kernel need it.
"""
