"""HadarE's own ideas, pure: the rules by which forks become one model, and where forks stand in a job's schedule.

Nothing here reads a file or touches a tensor; the arithmetic is in ``hadare.training.averaging``.
"""
