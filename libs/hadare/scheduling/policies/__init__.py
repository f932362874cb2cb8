"""Policies by name. ``policy_of("hadare").plan(snapshot, memory)`` is all that a round needs."""

from hadare.scheduling.policies.base import (
    ENTRY_POINT_GROUP,
    Memory,
    Policy,
    policy_names,
    policy_of,
    register,
)
from hadare.scheduling.policies.hadar import Hadar
from hadare.scheduling.policies.hadare import Hadare

register(Hadare())
register(Hadar())

__all__ = ["ENTRY_POINT_GROUP", "Hadar", "Hadare", "Memory", "Policy", "policy_names", "policy_of", "register"]
