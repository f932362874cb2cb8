"""Why the ``hadare`` command ended, for scripts. The table in docs/reference/exit-codes.md is tested against this."""

from __future__ import annotations

from enum import IntEnum

from hadare.model.errors import HadareError, Rejected, Unavailable


class ExitCode(IntEnum):
    """What the exit status of ``hadare`` says."""

    OK = 0
    NOT_WELL = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5
    TIMED_OUT = 6
    MISSING = 7
    INTERNAL = 70
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "done; with `--wait`: the job completed",
    ExitCode.NOT_WELL: "the job failed or was cancelled (`submit --wait`, `watch`, `run`), the cluster is not well "
    "(`status`), something that `up` needs is missing (`doctor`), or the demo missed a target",
    ExitCode.USAGE: "a wrong option or argument, a faulty job file or cluster, or a spec that was refused",
    ExitCode.NOT_FOUND: "there is no such job, node, round or version",
    ExitCode.CONFLICT: "the state does not allow it: a name is taken, a job has ended, a cluster runs already",
    ExitCode.UNREACHABLE: "no cluster is known, or it does not answer",
    ExitCode.TIMED_OUT: "the time limit of `--timeout` is over; the job goes on",
    ExitCode.MISSING: "this machine lacks something that the command needs, such as torch or nats-server",
    ExitCode.INTERNAL: "a fault of HadarE itself",
    ExitCode.INTERRUPTED: "Ctrl-C; what was submitted goes on",
}

_BY_STATUS = {
    400: ExitCode.USAGE,
    413: ExitCode.USAGE,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.CONFLICT,
    412: ExitCode.CONFLICT,
    429: ExitCode.UNREACHABLE,
    503: ExitCode.UNREACHABLE,
}


class MissingPart(HadareError):
    """This machine lacks something that the command needs."""


class JobFailed(HadareError):
    """The job itself failed, not the command."""


def exit_code_of(error: HadareError) -> ExitCode:
    """The exit status for an error."""
    match error:
        case Rejected():
            return _BY_STATUS.get(error.code, ExitCode.INTERNAL)
        case Unavailable():
            return ExitCode.UNREACHABLE
        case MissingPart():
            return ExitCode.MISSING
        case JobFailed():
            return ExitCode.NOT_WELL
        case _:
            return ExitCode.INTERNAL
