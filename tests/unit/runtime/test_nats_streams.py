"""Streams are declared again when the server has a moment's trouble."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from hadare.runtime.nats_errors import ApiError
from hadare.runtime.nats_link import Link
from hadare.runtime.nats_streams import declare


class TroubledServer:
    """Knows no stream, and cannot make a place for one before the second attempt."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def api(self, verb: str, _body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self.asked.append(verb.split(".")[1])
        if verb.startswith("STREAM.INFO"):
            raise ApiError(404, 10059, "stream not found")
        if self.asked.count("CREATE") == 1:
            raise ApiError(500, 10049, "error creating store for stream")
        return {}


async def test_a_stream_whose_store_could_not_be_made_is_asked_for_again() -> None:
    server = TroubledServer()
    await declare(cast(Link, server), [{"name": "S", "max_bytes": 2**20}], patience_s=5.0)
    assert server.asked == ["INFO", "CREATE", "INFO", "CREATE"]
