"""Code and weights that a job file names on this machine: found, sent, and then called what the cluster calls them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hadare.cli.job_files import JobFile
from hadare.client import HadareClient
from hadare.client.weights_file import fault_of
from hadare.machines.belongings import start_of
from hadare.model.errors import Rejected
from hadare.wire import bundles

_NOT_SENT_YET = "0" * 64
_WEIGHTS = ".safetensors"


@dataclass(frozen=True, slots=True)
class Local:
    """A job file without what it names here; ``code`` and ``weights`` are what is to be sent."""

    job: JobFile
    code: Path | None = None
    weights: Path | None = None

    def checked(self) -> dict[str, Any]:
        """The spec but for the hashes. Raises ``Rejected`` (400) with every fault."""
        spec = dict(self.job.spec)
        if self.code is not None:
            spec["code"] = _NOT_SENT_YET
        if self.weights is not None:
            spec["start_from"] = f"sha256:{_NOT_SENT_YET}"
        return replace(self.job, spec=spec).checked()

    async def sent(self, client: HadareClient) -> JobFile:
        """Sends what has to be sent; the job file in the cluster's words."""
        spec = dict(self.job.spec)
        if self.code is not None:
            spec["code"] = await client.send_code(self.code, but=Path(self.job.name))
        if self.weights is not None:
            spec["start_from"] = await client.send_weights(self.weights)
        return replace(self.job, spec=spec)


def localise(job: JobFile, code: Path | None = None, start_from: str | None = None) -> Local:
    """Takes out what is on this machine: ``code`` is a folder (or a hash), ``start_from`` maybe a file.

    Paths in the file are relative to it, those given as options to the current directory. Raises ``Rejected`` (400).
    """
    spec = dict(job.spec)
    if start_from is not None:
        spec["start_from"] = start_from
    base = Path(job.name).parent
    named = spec.get("code")
    if code is None and isinstance(named, str) and not _is_hash(named):
        code = base / named
    if code is not None:
        spec.pop("code", None)
        list(bundles.files_of(code, but=Path(job.name)))
    weights = _weights(spec.get("start_from"), Path() if start_from is not None else base)
    if weights is not None:
        spec.pop("start_from")
    return Local(replace(job, spec=spec), code, weights)


def _weights(named: object, base: Path) -> Path | None:
    """The file, if ``start_from`` names one: by its ending, or by being no name of the cluster's and there."""
    if not isinstance(named, str) or not named:
        return None
    path = base / named
    if not named.endswith(_WEIGHTS) and (start_of(named) is not None or not path.is_file()):
        return None
    if not path.is_file():
        raise Rejected(400, f"start_from: there is no file {path}")
    if path.suffix != _WEIGHTS:
        raise Rejected(400, f"start_from: {path} is not a {_WEIGHTS} file (`hadare weights export` writes them)")
    if fault := fault_of(path):
        raise Rejected(400, f"start_from: {path} is no weights file: {fault}")
    return path


def _is_hash(text: str) -> bool:
    return len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)
