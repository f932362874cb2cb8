"""Every subject of the system, typed: one subject carries one type. Names without the cluster's prefix."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from hadare.model.devices import Heartbeat, NodeInventory, NodeStatus, NodeWish
from hadare.model.errors import Rejected
from hadare.model.jobs import JobProgress, JobRecord, VersionManifest
from hadare.model.leases import ForkResult, Lease, LeaseAnswer, ResultAnswer, Revoke, Revoked, StepReport
from hadare.model.plans import PriceBook
from hadare.model.rounds import (
    AllocatorMemory,
    CloseAnswer,
    CloseRequest,
    Done,
    Leader,
    NodeLeases,
    OpenAnswer,
    OpenRequest,
    QuoteRequest,
    RoundHead,
    RoundPage,
    Taken,
)
from hadare.model.versions import VersionComing, VersionMade

M = TypeVar("M")
Q = TypeVar("Q")
A = TypeVar("A")

_KEY = re.compile(r"^[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*\Z")
_TOKEN = re.compile(r"^[A-Za-z0-9_-]{1,128}\Z")


def fill(template: str, tokens: dict[str, str]) -> str:
    """The subject with its ``{tokens}`` filled in; one that is not given is a ``*``. Raises ``Rejected`` (400)."""
    parts = []
    for part in template.split("."):
        if not part.startswith("{"):
            parts.append(part)
            continue
        value = tokens.get(part[1:-1], "*")
        if value != "*" and not _TOKEN.match(value):
            raise Rejected(400, f"'{value}' cannot be a part of a subject: letters, digits, '-' and '_' only")
        parts.append(value)
    return ".".join(parts)


@dataclass(frozen=True)
class Topic(Generic[M]):
    """A subject on which plain messages of one type are published: at most once, lossy."""

    template: str
    message: type[M]

    def subject(self, **tokens: str) -> str:
        return fill(self.template, tokens)


@dataclass(frozen=True)
class Endpoint(Generic[Q, A]):
    """A subject that is asked and answers."""

    template: str
    question: type[Q]
    answer: type[A]

    def subject(self, **tokens: str) -> str:
        return fill(self.template, tokens)


@dataclass(frozen=True)
class Records(Generic[M]):
    """Records of one type in a key-value bucket; ``family`` is the first token of their keys ('' for none)."""

    bucket: str
    family: str
    record: type[M]

    def key(self, name: str) -> str:
        """The record's key in its bucket. Raises ``Rejected`` (400) if the name cannot be a part of one."""
        return _key(self.family, name)


@lru_cache(maxsize=16_384)
def _key(family: str, name: str) -> str:
    key = ".".join(part for part in (family, name) if part)
    if len(key) > 512 or not _KEY.match(key):
        raise Rejected(400, f"'{key}' cannot be a key: letters, digits, '-', '_', '=', '/', and single dots inside")
    return key


HEARTBEAT = Topic("node.v1.{node}.heartbeat", Heartbeat)
STEP_REPORT = Topic("node.v1.{node}.report", StepReport)
VERSION_COMING = Topic("node.v1.{node}.coming", VersionComing)
VERSION_MADE = Topic("node.v1.{node}.version", VersionMade)
PRICES_CHANGED = Topic("pricing.v1.changed", PriceBook)

GRANT = Endpoint("node.v1.{node}.grant", Lease, LeaseAnswer)
REVOKE = Endpoint("node.v1.{node}.revoke", Revoke, Revoked)
QUOTE = Endpoint("pricing.v1.quote", QuoteRequest, PriceBook)
TAKEN = Endpoint("pricing.v1.taken", Taken, Done)
OPEN_ROUND = Endpoint("tracker.v1.open", OpenRequest, OpenAnswer)
CLOSE_ROUND = Endpoint("tracker.v1.close", CloseRequest, CloseAnswer)
RESULT = Endpoint("tracker.v1.result", ForkResult, ResultAnswer)

JOBS = Records("jobs", "job", JobRecord)
PROGRESS = Records("progress", "job", JobProgress)
VERSIONS = Records("progress", "version", VersionManifest)
NODES = Records("nodes", "", NodeInventory)
NODE_WISHES = Records("node_wishes", "", NodeWish)
NODE_STATES = Records("node_states", "", NodeStatus)
PRICES = Records("prices", "", PriceBook)
ROUND_HEAD = Records("rounds", "head", RoundHead)
ROUND_LEASES = Records("rounds", "leases", NodeLeases)
ROUND_PAGES = Records("rounds", "plan", RoundPage)
ROUND_MEMORY = Records("rounds", "memory", AllocatorMemory)
ALLOCATOR_LEADER = Records("rounds", "leader", Leader)
TRACKER_LEADER = Records("progress", "leader", Leader)

BUCKETS = ("jobs", "progress", "nodes", "node_wishes", "node_states", "prices", "rounds")
"""The key-value buckets, each with one writer (DESIGN §3)."""

WEIGHTS = "weights"
"""The object store of versions and fork results."""

CODE = "code"
"""The object store of what users send along: code bundles (label ``code``) and first weights (label ``weights``)."""
