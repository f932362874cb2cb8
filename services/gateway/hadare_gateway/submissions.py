"""The endpoint ``jobs.submit``: what is asked for is checked whole, found, and only then stored."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from hadare.machines import admission
from hadare.machines.validation import Fault, faults_of, read, refuse
from hadare.runtime import telemetry
from hadare.wire import api
from hadare_gateway.intake import Intake
from hadare_gateway.sent import Sent


class Submissions:
    """Makes jobs of requests."""

    def __init__(self, intake: Intake, sent: Sent) -> None:
        self._intake = intake
        self._sent = sent

    async def submit(self, plain: dict[str, Any]) -> api.Submitted:
        """Refuses a bad spec with every fault in it, listed by path; nothing is stored then."""
        refuse(_faults_of_submission(plain), "the request")
        request = read(plain, api.Submit, "the request")
        spec = admission.read_spec(request.spec)
        request_id = request.request_id or secrets.token_hex(16)
        # What a repeated request names was found the first time, and may be gone by now.
        start = None if await self._intake.knows(request_id) else await self._sent.resolve(spec)
        intent = admission.intent_of(
            spec, request_id, submitted_at=round(time.time(), 3), traceparent=_submission_trace(), start=start
        )
        return await self._intake.submit(intent)


def _faults_of_submission(plain: Mapping[str, Any]) -> list[Fault]:
    """Those of the request and those of the spec in it, each once."""
    outer = [fault for fault in faults_of(plain, api.Submit) if not fault.path.startswith("spec.")]
    return outer + (admission.check_spec(plain["spec"], "spec") if isinstance(plain.get("spec"), Mapping) else [])


def _submission_trace() -> str:
    """The span that handles the submission; without tracing still a trace of its own, so that every job has one."""
    return telemetry.traceparent() or telemetry.new_traceparent()
