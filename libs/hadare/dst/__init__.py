"""Deterministic simulation testing: a whole cluster in virtual time against a seeded adversary, and its laws.

The control services are the real ones, handed in by whoever runs a simulation (the library imports no service); the
agents are the real lease machine with a trainer that computes instead of training.
"""
