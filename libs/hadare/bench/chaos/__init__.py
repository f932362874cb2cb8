"""A real cluster on this machine under a seeded schedule of faults, and a checker that reads what is left."""
