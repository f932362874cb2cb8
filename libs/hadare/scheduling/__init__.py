"""Hadar and HadarE, pure: what a device costs, what a job is worth, and who gets what in a round."""
