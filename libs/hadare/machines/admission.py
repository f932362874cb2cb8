"""Admission: which specs become jobs, under which name and identifier, and how what a user wants of one may change.

A submission is three records that are created in this order: the intent (by request), the name's claim, the job.
Whoever finds the first without the last can finish the work, so a crash between any two leaves nothing half-stored.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from hadare.machines.belongings import faults_of_belongings
from hadare.machines.validation import Fault, faults_of, join, nearest, read, refuse
from hadare.model.errors import Rejected
from hadare.model.fields import JobId, Sha256, Text
from hadare.model.jobs import Desired, JobRecord, JobSpec, JobState, ObjectRef
from hadare.scheduling.utility import needs_deadline, utility_names

MAX_SPEC_BYTES = 256 * 1024
MAX_REQUEST_ID = 256
_MAX_ENV_VALUE = 4096

_JOB_ID = re.compile(r"^j[a-z2-7]{16}$")
_ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")

Wish = Literal["cancel", "pause", "resume"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitIntent:
    """KV ``jobs``, family ``request``: what a request_id asked for, written before anything else of the job."""

    schema: int = 1
    request_id: Text
    record: JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class NameClaim:
    """KV ``jobs``, family ``name``: whose a name is. Stale if neither the request's intent nor the job exists."""

    schema: int = 1
    job_id: JobId
    request: Sha256


def check_spec(raw: object, path: str = "") -> list[Fault]:
    """Every fault of a job's spec as a user wrote it."""
    if not isinstance(raw, Mapping):
        return list(faults_of(raw, JobSpec, path))
    return [*faults_of(raw, JobSpec, path), *_beyond_types(raw, path), *faults_of_belongings(raw, path)]


def read_spec(raw: object, what: str = "spec") -> JobSpec:
    """The spec, normalised: defaults filled in. Raises ``Rejected`` (400 with all faults, 413 if it is too large)."""
    refuse(check_spec(raw), what)
    spec = read(raw, JobSpec, what)
    size = len(_canonical(spec))
    if size > MAX_SPEC_BYTES:
        raise Rejected(413, f"the spec has {size} bytes; at most {MAX_SPEC_BYTES} are allowed")
    return spec


def digest_of(spec: JobSpec) -> str:
    """SHA-256 of the canonical JSON of the normalised spec: order and spelt-out defaults do not matter."""
    return hashlib.sha256(_canonical(spec)).hexdigest()


def request_key(request_id: str) -> str:
    """The key of a request's intent. Any text can be a request_id. Raises ``Rejected`` (400) for an empty one."""
    if not 0 < len(request_id) <= MAX_REQUEST_ID:
        raise Rejected(400, f"request_id must have 1 to {MAX_REQUEST_ID} characters")
    return hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()


def job_id_of(request_id: str) -> str:
    """The job's identifier follows from the request, so that a repeated submission cannot make a second job."""
    return "j" + _base32(request_key(request_id), 16)


def name_of(spec: JobSpec, request_id: str) -> str:
    """The name that the user chose, or ``<class>-<6 letters>`` made from the workload and the request."""
    if spec.name is not None:
        return spec.name
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", spec.workload.rpartition(":")[2])
    slug = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:48].strip("-") or "job"
    return f"{slug}-{_base32(request_key(request_id), 6)}"


def intent_of(
    spec: JobSpec, request_id: str, *, submitted_at: float, traceparent: str, start: ObjectRef | None = None
) -> SubmitIntent:
    """All that a submission will write, decided at once. ``start``: what ``start_from`` was found to be.

    The digest is of what the user wrote: the same request means the same, whatever the newest version is by then.
    """
    record = JobRecord(
        job_id=job_id_of(request_id),
        name=name_of(spec, request_id),
        spec=dataclasses.replace(spec, start_object=start),
        request_id=request_id,
        digest=digest_of(spec),
        submitted_at=submitted_at,
        traceparent=traceparent,
    )
    return SubmitIntent(request_id=request_id, record=record)


def claim_of(record: JobRecord) -> NameClaim:
    return NameClaim(job_id=record.job_id, request=request_key(record.request_id))


def same_spec(known: JobRecord, digest: str) -> None:
    """Raises ``Rejected`` (409) if a request_id comes again with another spec."""
    if known.digest != digest:
        raise Rejected(
            409,
            f"request_id '{known.request_id}' was used for another spec (job '{known.name}'); use a new request_id",
            {"job_id": known.job_id, "name": known.name},
        )


def name_taken(name: str, job_id: str) -> Rejected:
    return Rejected(
        409,
        f"the name '{name}' is taken by job {job_id}; choose another, leave it out, or delete that job",
        {"name": name, "job_id": job_id},
    )


def wish(record: JobRecord, state: JobState, what: Wish) -> JobRecord:
    """The record with what the user now wants of the job; the same record if nothing changes.

    Cancelling wins: nothing takes it back. Raises ``Rejected`` (409).
    """
    wanted = {"cancel": Desired.CANCELLED, "pause": Desired.PAUSED, "resume": Desired.RUN}[what]
    if record.desired is Desired.CANCELLED and wanted is Desired.CANCELLED:
        return record
    if state.ended:
        raise Rejected(409, f"job '{record.name}' has ended ({state.value}): it cannot be {_DONE[what]}")
    if record.desired is Desired.CANCELLED:
        raise Rejected(409, f"job '{record.name}' is being cancelled: it cannot be {_DONE[what]}; submit it anew")
    return record if record.desired is wanted else dataclasses.replace(record, desired=wanted)


_DONE = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}


def check_delete(record: JobRecord, state: JobState) -> None:
    """Only what has ended can be deleted. Raises ``Rejected`` (409) with what to do first."""
    if state.ended:
        return
    first = (
        "it is being cancelled; wait until it has ended" if record.desired is Desired.CANCELLED else "cancel it first"
    )
    raise Rejected(409, f"job '{record.name}' is {state.value}: {first}", {"state": state.value})


def _beyond_types(raw: Mapping[Any, Any], path: str) -> Iterator[Fault]:
    """What types cannot say."""
    if isinstance(raw.get("name"), str) and _JOB_ID.match(raw["name"]):
        yield Fault(join(path, "name"), "looks like a job's identifier; choose another name")
    yield from _of_utility(raw, path)
    if isinstance(raw.get("until"), Mapping):
        yield from _of_until(raw["until"], join(path, "until"))
    if isinstance(raw.get("consolidation"), Mapping):
        yield from _of_consolidation(raw["consolidation"], join(path, "consolidation"))
    env = raw.get("env")
    for name, value in env.items() if isinstance(env, Mapping) else ():
        if isinstance(name, str) and not _ENV_NAME.match(name):
            yield Fault(join(join(path, "env"), name[:64]), "is not a name for an environment variable")
        if isinstance(value, str) and (len(value) > _MAX_ENV_VALUE or "\0" in value):
            yield Fault(
                join(join(path, "env"), str(name)[:64]), f"at most {_MAX_ENV_VALUE} characters, none of them NUL"
            )


def _of_utility(raw: Mapping[Any, Any], path: str) -> Iterator[Fault]:
    name = raw.get("utility")
    if isinstance(name, str) and name not in utility_names():
        known = ", ".join(utility_names())
        yield Fault(join(path, "utility"), f"must be one of {known}; is {name[:64]!r}{nearest(name, utility_names())}")
    elif isinstance(name, str) and needs_deadline(name) and raw.get("deadline") is None:
        yield Fault(join(path, "deadline"), f"is needed by the utility {name}: seconds after the submission")


def _of_until(until: Mapping[Any, Any], path: str) -> Iterator[Fault]:
    bounds = [name for name in ("at_least", "at_most") if until.get(name) is not None]
    if len(bounds) != 1:
        yield Fault(path, f"needs exactly one of at_least and at_most, has {'both' if bounds else 'neither'}")
    if until.get("metric") == "":
        yield Fault(join(path, "metric"), "must name a metric that the workload reports")


def _of_consolidation(wanted: Mapping[Any, Any], path: str) -> Iterator[Fault]:
    diloco = wanted.get("method") == "diloco"
    if not diloco and wanted.get("outer_momentum") is not None:
        yield Fault(join(path, "outer_momentum"), "is for the method diloco alone")
    if wanted.get("method") == "auto" and wanted.get("outer_rate") is not None:
        yield Fault(join(path, "outer_rate"), "is chosen by the method auto itself")
    own = [name for name in ("outer_rate", "outer_momentum") if wanted.get(name) is not None]
    if wanted.get("guard") is not None and (diloco or own):
        yield Fault(join(path, "guard"), f"chooses the outer step itself; leave out {'method' if diloco else own[0]}")


def _canonical(spec: JobSpec) -> bytes:
    plain = msgspec.to_builtins(spec)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _base32(hexadecimal: str, letters: int) -> str:
    return base64.b32encode(bytes.fromhex(hexadecimal)).decode().lower()[:letters]
