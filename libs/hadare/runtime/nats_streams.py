"""Which streams exist, what each may take of the disk, and how they are declared: the same call twice is no change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from hadare.model.errors import Unavailable
from hadare.runtime.backoff import retrying
from hadare.runtime.nats_errors import ApiError
from hadare.runtime.nats_link import Link
from hadare.wire.subjects import BUCKETS, CODE, WEIGHTS

log = structlog.get_logger("hadare.nats")

_DAY_S = 86_400
_NANO = 1_000_000_000
_NOT_FOUND = 10059
_NAME_IN_USE = 10058
# "error creating store for stream": seen once, on a busy server that had just deleted all other streams. It passes.
_NO_STORE = 10049
_NO_ROOM = (10047, 10023, 10028)
_SMALLEST = 16 * 2**20

EVENTS_MAX_AGE_S = 30 * _DAY_S
LOGS_MAX_AGE_S = 7 * _DAY_S
EVENTS_DUPLICATE_WINDOW_S = 600

SHARES = {
    "weights": 0.74,
    "code": 0.05,
    "progress": 0.05,
    "rounds": 0.04,
    "events": 0.04,
    "logs": 0.04,
    "jobs": 0.02,
    "nodes": 0.004,
    "prices": 0.002,
    "node_wishes": 0.002,
    "node_states": 0.002,
}
"""What each store may take of the cluster's disk capacity. One that is full refuses, or drops its oldest."""


@dataclass(frozen=True, slots=True)
class Names:
    """What the cluster's stores are called on the server. Stock tools know a bucket by ``kv()`` or ``objects()``."""

    prefix: str

    def kv(self, bucket: str) -> str:
        return f"{self.prefix}_{bucket}"

    def kv_stream(self, bucket: str) -> str:
        return f"KV_{self.kv(bucket)}"

    def objects(self, bucket: str) -> str:
        return f"{self.prefix}_{bucket}"

    def objects_stream(self, bucket: str) -> str:
        return f"OBJ_{self.objects(bucket)}"

    @property
    def events(self) -> str:
        return f"{self.prefix}_events"

    @property
    def logs(self) -> str:
        return f"{self.prefix}_logs"


def declarations(prefix: str, capacity_bytes: int, replicas: int) -> list[dict[str, Any]]:
    """The configuration of every stream of a cluster, as JetStream wants it."""
    names = Names(prefix)

    def stream(share: str, name: str, subjects: list[str], **more: Any) -> dict[str, Any]:
        return {
            "name": name,
            "subjects": subjects,
            "storage": "file",
            "retention": "limits",
            "num_replicas": replicas,
            "max_bytes": max(_SMALLEST, int(capacity_bytes * SHARES[share])),
            **more,
        }

    wanted = [
        stream(bucket, names.kv_stream(bucket), [f"$KV.{names.kv(bucket)}.>"], **_KEY_VALUE) for bucket in BUCKETS
    ]
    for bucket in (WEIGHTS, CODE):
        held = [f"$O.{names.objects(bucket)}.{kind}.>" for kind in ("C", "M")]
        wanted.append(stream(bucket, names.objects_stream(bucket), held, **_OBJECT_STORE))
    wanted.append(
        stream(
            "events",
            names.events,
            [f"{prefix}.event.v1.>"],
            discard="old",
            max_age=EVENTS_MAX_AGE_S * _NANO,
            duplicate_window=EVENTS_DUPLICATE_WINDOW_S * _NANO,
        )
    )
    wanted.append(stream("logs", names.logs, [f"{prefix}.log.v1.>"], discard="old", max_age=LOGS_MAX_AGE_S * _NANO))
    return wanted


_KEY_VALUE: dict[str, Any] = {
    "max_msgs_per_subject": 1,
    "discard": "new",
    "allow_rollup_hdrs": True,
    "deny_delete": True,
    "allow_direct": False,  # a direct read may come from a follower that lags; these records are compared and set
    "duplicate_window": 120 * _NANO,
}
_OBJECT_STORE: dict[str, Any] = {"discard": "new", "allow_rollup_hdrs": True, "allow_direct": True}


async def declare(link: Link, wanted: list[dict[str, Any]], patience_s: float) -> None:
    """Creates what is missing and changes what differs. Raises ``Unavailable``.

    The largest one comes first: if the server has less room than it asks for, the others ask for less in proportion,
    and half of that, since what the server has left is not known.
    """
    ordered = sorted(wanted, key=lambda config: -int(config["max_bytes"]))
    largest, others = ordered[0], ordered[1:]
    granted = await _declare(link, largest, patience_s)
    if granted < largest["max_bytes"]:
        scale = granted / largest["max_bytes"] / 2
        others = [{**config, "max_bytes": max(_SMALLEST, int(config["max_bytes"] * scale))} for config in others]
    await asyncio.gather(*(_declare(link, config, patience_s) for config in others))


async def _declare(link: Link, config: Mapping[str, Any], patience_s: float) -> int:
    """The ``max_bytes`` that the stream was created with, or was asked for if it is there already."""
    name = str(config["name"])
    asked = dict(config)
    try:
        await retrying(lambda: _declare_once(link, asked), what=f"declare {name}", patience_s=patience_s)
    except ApiError as error:
        raise Unavailable(f"the bus refuses the stream {name}: {error}") from error
    return int(asked["max_bytes"])


async def _declare_once(link: Link, config: dict[str, Any]) -> None:
    name = config["name"]
    try:
        held = (await link.api(f"STREAM.INFO.{name}"))["config"]
    except ApiError as error:
        if error.err_code != _NOT_FOUND:
            raise
        await _create(link, config)
        return
    differs = {key: value for key, value in config.items() if held.get(key) != value and (value or held.get(key))}
    differs.pop("max_bytes", None)  # the operator's to change, and what _create had to lower
    if differs:
        log.warning("stream changed", stream=name, changes=sorted(differs))
        await link.api(f"STREAM.UPDATE.{name}", {**held, **differs})


async def _create(link: Link, config: dict[str, Any]) -> None:
    while True:
        try:
            await link.api(f"STREAM.CREATE.{config['name']}", config)
            return
        except ApiError as error:
            if error.err_code == _NAME_IN_USE:
                raise Unavailable(f"{config['name']} was just declared by somebody else") from error
            if error.err_code == _NO_STORE:
                raise Unavailable(f"the server could not make a place for {config['name']}: {error}") from error
            if error.err_code not in _NO_ROOM or config["max_bytes"] <= _SMALLEST:
                raise
            config["max_bytes"] = max(_SMALLEST, config["max_bytes"] // 2)
            log.warning("the bus has less room than asked for", stream=config["name"], max_bytes=config["max_bytes"])
