"""How a job's record, its progress and the round's decision about it become the one status that users see."""

from __future__ import annotations

from hadare.model.jobs import Desired, JobProgress, JobRecord, JobState
from hadare.model.plans import Decision

_NOT_TAKEN_UP = "accepted; the job tracker has not taken it up yet"
_TRACKER_KNOWS = ("chosen", "not_ready", "paused")


def state_of(record: JobRecord, progress: JobProgress | None) -> JobState:
    """The tracker's state, except that a wish to cancel is seen at once: nothing can take it back."""
    state = progress.state if progress else JobState.QUEUED
    return JobState.CANCELLING if record.desired is Desired.CANCELLED and not state.ended else state


def reason_of(record: JobRecord, progress: JobProgress | None, decision: Decision | None) -> str:
    """Why the job is where it is: the allocator's reason if it waits for devices, else the tracker's."""
    state = state_of(record, progress)
    known = progress.reason if progress else _NOT_TAKEN_UP
    if state is JobState.CANCELLING:
        return known if progress and progress.state is JobState.CANCELLING else "its processes are being ended"
    if record.desired is Desired.PAUSED and state is not JobState.PAUSED and not state.ended:
        return "will pause when its forks have handed back their work"
    if record.desired is Desired.RUN and state is JobState.PAUSED:
        return "was resumed; it is placed again with the next round"
    if state in (JobState.QUEUED, JobState.WAITING) and decision and decision.code not in _TRACKER_KNOWS:
        return in_words(decision)
    return known


def in_words(decision: Decision) -> str:
    """A decision as one sentence: why, behind whom, and what would change it."""
    text = decision.message or decision.code.replace("_", " ")
    if decision.position:
        text += f"; position {decision.position}"
    if decision.blockers:
        more = len(decision.blockers) - 3
        text += f"; behind {', '.join(decision.blockers[:3])}" + (f" and {more} more" if more > 0 else "")
    return f"{text}; {decision.remedy}" if decision.remedy else text
