"""Policies by name. ``policy_of("hadare").plan(snapshot, memory)`` is all that a round needs."""

from hadare.scheduling.policies.base import (
    ENTRY_POINT_GROUP,
    Memory,
    Policy,
    default_utility,
    policy_names,
    policy_of,
    register,
)
from hadare.scheduling.policies.gavel import Gavel
from hadare.scheduling.policies.hadar import Hadar
from hadare.scheduling.policies.hadare import Hadare
from hadare.scheduling.policies.tiresias import Tiresias
from hadare.scheduling.policies.yarn_cs import YarnCs

register(Hadare())
register(Hadar())
register(Gavel())
register(Tiresias())
register(YarnCs())

__all__ = [
    "ENTRY_POINT_GROUP",
    "Gavel",
    "Hadar",
    "Hadare",
    "Memory",
    "Policy",
    "Tiresias",
    "YarnCs",
    "default_utility",
    "policy_names",
    "policy_of",
    "register",
]
