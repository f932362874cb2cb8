"""What all commands share: options that may stand anywhere, errors as one clear message, and exit codes."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar

import click

from hadare.cli.exit_codes import ExitCode, exit_code_of
from hadare.cli.lazy import LazyGroup
from hadare.cli.session import Session
from hadare.model.errors import HadareError
from hadare.wire import codec

F = TypeVar("F", bound=Callable[..., Any])

_ASKED_FOR_JSON = "hadare.json"


class Root(LazyGroup):
    """The group ``hadare``. Turns every error into a message on stderr, a JSON document if asked, and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # A line that cannot be parsed never gets as far as its options, --json among them.
        ctx.meta[_ASKED_FOR_JSON] = "--json" in args[: args.index("--") if "--" in args else None]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if ctx.meta[_ASKED_FOR_JSON]:
                _print_error(ExitCode.USAGE, error.format_message(), {})
            raise
        except HadareError as error:
            code, message, details = exit_code_of(error), str(error), getattr(error, "details", {})
        except TimeoutError as error:
            code, message, details = ExitCode.TIMED_OUT, str(error) or "the time limit is over", {}
        except KeyboardInterrupt:
            code, message, details = ExitCode.INTERRUPTED, "interrupted", {}
        _report(ctx, code, message, details)
        raise click.exceptions.Exit(code)


def session_of(ctx: click.Context) -> Session:
    """The run's session, made when it is first needed."""
    session: Session = ctx.find_root().ensure_object(Session)
    return session


def pass_session(command: Callable[..., None]) -> Callable[..., None]:
    """Gives the command the session as its first argument."""

    @click.pass_context
    def with_session(ctx: click.Context, /, *args: Any, **named: Any) -> None:
        ctx.invoke(command, session_of(ctx), *args, **named)

    return update_wrapper(with_session, command)


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def note(ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value:
            setattr(session_of(ctx), name, value)

    return note


def json_option(command: F) -> F:
    """``--json``."""
    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_set("json"),
        help="Print one JSON document on stdout.",
    )(command)


def cluster_options(command: F) -> F:
    """``--nats``, ``--prefix`` and ``--json``: for every command that talks to a cluster."""
    url = click.option(
        "--nats",
        envvar="HADARE_NATS_URL",
        metavar="URL",
        expose_value=False,
        callback=_set("nats_url"),
        help="The cluster's NATS server. Default: the cluster of this directory or one above it.",
    )
    prefix = click.option(
        "--prefix",
        envvar="HADARE_PREFIX",
        metavar="NAME",
        expose_value=False,
        callback=_set("prefix"),
        help="The cluster's prefix on that server.",
    )
    return json_option(url(prefix(command)))


def _report(ctx: click.Context, code: ExitCode, message: str, details: dict[str, Any]) -> None:
    session = session_of(ctx)
    faults = details.get("faults")
    if isinstance(faults, list) and faults:
        session.note(f"error: {message.split(': ')[0]}")
        for fault in faults:
            session.note(f"  {_place(fault)}{fault['message']}")
    else:
        session.note(f"error: {message}")
    if session.json:
        _print_error(code, message, details)


def _print_error(code: ExitCode, message: str, details: dict[str, Any]) -> None:
    print(codec.dumps({"error": {"exit_code": int(code), "message": message, "details": details}}), flush=True)


def _place(fault: dict[str, Any]) -> str:
    line = f"line {fault['line']}: " if fault.get("line") else ""
    return line + (f"{fault['path']}: " if fault.get("path") else "")
