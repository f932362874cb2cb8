"""What each NATS user of a cluster may publish and hear: a service writes its own state and speaks for itself alone.

The server checks the subject of a message and not its reply subject; responders check that one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hadare.runtime.nats_streams import Names
from hadare.runtime.seeds import inbox_prefix
from hadare.wire import subjects
from hadare.wire.subjects import BUCKETS, CODE, WEIGHTS

REPLIES = {"max": 1, "expires": "10m"}
"""One answer to each question, within the longest that a question is waited for (a round's close consolidates)."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects that a user may publish and subscribe to; answering what it was asked is always allowed."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Roles:
    """The permissions of every user of the cluster with this prefix."""

    prefix: str

    def gateway(self) -> Permissions:
        """Alone may create the streams and change their settings. Of ``nodes`` it deletes those that are lost."""
        return self._user(
            "gateway",
            publish=[
                *self._writes("jobs", "node_wishes", "nodes"),
                *self._reads_state(),
                *self._reads(self._names.events, self._names.logs, self._weights, self._code),
                f"$JS.API.STREAM.PURGE.{self._code}",
                *self._declares(),
                *self._own("event.v1.job.>", "event.v1.node.>"),
                "$SRV.>",
            ],
            subscribe=[*self._own("api.v1.>", "event.v1.>"), *self._on(subjects.HEARTBEAT, subjects.STEP_REPORT)],
        )

    def pricing(self) -> Permissions:
        return self._user(
            "pricing",
            publish=[
                *self._writes("prices"),
                *self._reads_state(),
                *self._on(subjects.PRICES_CHANGED),
                *self._own("event.v1.price.>"),
            ],
            subscribe=self._on(subjects.QUOTE, subjects.TAKEN),
        )

    def allocator(self) -> Permissions:
        return self._user(
            "allocator",
            publish=[
                *self._writes("rounds", "node_states"),
                *self._reads_state(),
                *self._on(subjects.QUOTE, subjects.TAKEN, subjects.OPEN_ROUND, subjects.CLOSE_ROUND),
                *self._on(subjects.GRANT, subjects.REVOKE),
                *self._own("event.v1.round.>", "event.v1.node.>"),
            ],
            subscribe=self._on(subjects.HEARTBEAT),
        )

    def jobtracker(self) -> Permissions:
        return self._user(
            "jobtracker",
            publish=[
                *self._writes("progress"),
                *self._reads_state(),
                *self._reads(self._weights),
                *self._writes_objects(WEIGHTS),
                f"$JS.API.STREAM.PURGE.{self._weights}",
                *self._on(subjects.GRANT, subjects.REVOKE, subjects.VERSION_COMING, subjects.VERSION_MADE),
                *self._own("event.v1.job.>"),
            ],
            subscribe=[
                *self._on(subjects.OPEN_ROUND, subjects.CLOSE_ROUND, subjects.RESULT),
                *self._hears_objects(WEIGHTS),
            ],
        )

    def node(self, node: str) -> Permissions:
        """A node agent: its inventory, its messages, its results; of others it reads weights and code alone."""
        return self._user(
            node,
            publish=[
                f"$KV.{self._names.kv('nodes')}.{node}",
                f"$JS.API.STREAM.MSG.GET.{self._names.kv_stream('nodes')}",
                *self._reads(self._weights, self._code),
                *self._writes_objects(WEIGHTS),
                *self._on(subjects.HEARTBEAT, subjects.STEP_REPORT, subjects.RESULT, node=node),
                *self._own(f"event.v1.node.{node}.>", "log.v1.>"),
            ],
            # Its own heartbeats, too: by them it finds out that its name is taken.
            subscribe=[
                *self._on(subjects.GRANT, subjects.REVOKE, subjects.VERSION_COMING, subjects.VERSION_MADE, node=node),
                *self._on(subjects.HEARTBEAT, node=node),
                *self._hears_objects(WEIGHTS),
            ],
        )

    def client(self) -> Permissions:
        """People and their programs: the message API, events and reports to watch, weights to read, code to send.

        What is sent along is found by its content's hash, so nobody can put something else in its place unseen.
        """
        return self._user(
            "client",
            publish=[
                *self._own("api.v1.>"),
                *self._reads(self._weights, self._code),
                *self._writes_objects(CODE),
                "$SRV.>",
            ],
            subscribe=[
                *self._own("event.v1.>", "log.v1.>"),
                *self._on(subjects.STEP_REPORT, subjects.PRICES_CHANGED),
            ],
        )

    @property
    def _names(self) -> Names:
        return Names(self.prefix)

    @property
    def _weights(self) -> str:
        return self._names.objects_stream(WEIGHTS)

    @property
    def _code(self) -> str:
        return self._names.objects_stream(CODE)

    def _user(self, user: str, publish: Iterable[str], subscribe: Iterable[str]) -> Permissions:
        """Everybody may look for services; a client is none, and does not answer for one."""
        hears = [*subscribe, f"{inbox_prefix(user)}.>", *(["$SRV.>"] if user != "client" else [])]
        return Permissions((*publish, "$SRV.PING.>"), tuple(hears))

    def _on(self, *names: subjects.Topic[Any] | subjects.Endpoint[Any, Any], **tokens: str) -> list[str]:
        return self._own(*(name.subject(**tokens) for name in names))

    def _own(self, *subjects: str) -> list[str]:
        return [f"{self.prefix}.{subject}" for subject in subjects]

    def _declares(self) -> list[str]:
        streams = [*map(self._names.kv_stream, BUCKETS), self._names.events, self._names.logs]
        streams += [self._weights, self._code]
        return [f"$JS.API.STREAM.{verb}.{stream}" for stream in streams for verb in ("CREATE", "UPDATE")]

    def _writes(self, *buckets: str) -> list[str]:
        return [f"$KV.{self._names.kv(bucket)}.>" for bucket in buckets]

    def _writes_objects(self, bucket: str) -> list[str]:
        name = self._names.objects(bucket)
        return [f"$O.{name}.C.>", f"$O.{name}.M.*"]

    def _hears_objects(self, bucket: str) -> list[str]:
        """What is stored, while it is: no more than who reads the bucket may see anyway."""
        return [f"$O.{self._names.objects(bucket)}.C.>"]

    def _reads_state(self) -> list[str]:
        return self._reads(*(self._names.kv_stream(bucket) for bucket in BUCKETS))

    def _reads(self, *streams: str) -> list[str]:
        verbs = (
            *("STREAM.INFO.{}", "STREAM.MSG.GET.{}", "CONSUMER.CREATE.{}.>", "CONSUMER.MSG.NEXT.{}.>"),
            "CONSUMER.DELETE.{}.>",
        )
        return [f"$JS.API.{verb.format(stream)}" for stream in streams for verb in verbs]
