"""What nats-py and JetStream say went wrong, in the words of ``model.errors``."""

from __future__ import annotations

import json
from typing import Any

import nats.errors

from hadare.model.errors import HadareError, Rejected, Unavailable


class ApiError(HadareError):
    """JetStream refused a request. ``err_code`` is the server's own number for the reason."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} ({err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description


def as_ours(error: Exception, subject: str, timeout_s: float = 0.0) -> HadareError:
    """nats-py's errors in the words of ``model.errors``."""
    match error:
        case nats.errors.NoRespondersError():
            return Unavailable(f"nobody answers on {subject}")
        case nats.errors.TimeoutError():
            return Unavailable(f"no answer on {subject} in {timeout_s:g} s")
        case nats.errors.MaxPayloadError():
            return Rejected(413, f"a message to {subject} is larger than the bus allows")
        case nats.errors.BadSubjectError() | nats.errors.BadHeaderError():
            return Rejected(400, f"'{subject}' is not a subject that can be used")
        case nats.errors.OutboundBufferLimitError():
            return Unavailable("the bus is disconnected and the outgoing buffer is full")
        case _:
            return Unavailable(f"{subject}: {error or type(error).__name__}")


def checked(data: bytes, what: str) -> dict[str, Any]:
    """JetStream's answer as a map. Raises ``ApiError`` if it refuses, ``Unavailable`` if it cannot answer now."""
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise Unavailable(f"{what}: the answer is not JetStream's") from error
    fault = answer.get("error")
    if fault:
        code, err_code = int(fault.get("code", 500)), int(fault.get("err_code", 0))
        description = str(fault.get("description", "refused"))
        if code == 503:
            raise Unavailable(f"{what}: {description}")
        raise ApiError(code, err_code, description)
    if not isinstance(answer, dict):
        raise Unavailable(f"{what}: the answer is not JetStream's")
    return answer
