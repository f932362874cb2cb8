"""Makes this node fit for a job before a process is forked for it: requirements, data, code. Or says why it is not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace

import hadare
from hadare.model.errors import Broken, HadareError, Rejected, Unavailable
from hadare.model.jobs import JobSpec
from hadare.model.leases import Failure
from hadare.training.needs import Unmet, check_data, check_requirements, installed
from hadare_node_agent.code import CodeCache

_DATA_S = 30.0
_SHORTEST_SECRET = 6


class Place:
    """What the node has to offer beside its devices. ``python``: the forks' interpreter, '' for the agent's own."""

    def __init__(self, code: CodeCache, labels: Mapping[str, str], python: str = "") -> None:
        self._code = code
        self._labels = labels
        self.python = python

    async def check_python(self) -> None:
        """Raises ``Broken`` if the forks' interpreter lacks what forks need."""
        if not self.python:
            return
        try:
            found = await asyncio.to_thread(installed, ["hadare", "torch", "safetensors"], self.python)
        except Unavailable as error:
            raise Broken(f"HADARE_PYTHON: {error}") from error
        missing = sorted({"hadare", "torch", "safetensors"} - set(found.versions))
        if missing:
            raise Broken(f"HADARE_PYTHON: {self.python} lacks {', '.join(missing)}: pip install 'hadare[node-agent]'")
        if found.versions["hadare"] != hadare.__version__:
            raise Broken(f"HADARE_PYTHON has hadare {found.versions['hadare']}, the agent is {hadare.__version__}")

    async def prepare(self, process: str, spec: JobSpec) -> tuple[str, ...]:
        """Folders to import from. Keeps them until ``release``. Raises ``Unmet`` with the failure of the lease."""
        try:
            await asyncio.to_thread(check_requirements, spec.requirements, self.python)
            await self._check_data(spec)
            return (str(await self._code.folder(process, spec.code)),) if spec.code else ()
        except Unmet:
            raise
        except Rejected as fault:
            raise Unmet(Failure(kind="import", message=fault.message[:4096])) from fault
        except (HadareError, OSError) as error:
            raise Unmet(Failure(kind="fetch", message=f"not ready for the job: {error}"[:4096])) from error

    def release(self, process: str) -> None:
        self._code.release(process)

    async def _check_data(self, spec: JobSpec) -> None:
        """A file system that hangs must not keep the lease for ever."""
        try:
            async with asyncio.timeout(_DATA_S):
                await asyncio.to_thread(check_data, spec.data, self._labels)
        except TimeoutError:
            message = f"{', '.join(spec.data)}: no answer within {_DATA_S:g} s"[:4096]
            raise Unmet(Failure(kind="missing_data", message=message, node_specific=True)) from None


class Secrets:
    """The values of a job's ``env``, taken out of whatever leaves the node as text."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Short values stay: they are no secrets, and would blank out half of a text."""
        lines = {line: name for name, value in env.items() for line in value.splitlines()}
        self._names = {line: name for line, name in lines.items() if len(line) >= _SHORTEST_SECRET}
        longest_first = sorted(self._names, key=lambda line: (-len(line), line))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def out_of(self, text: str) -> str:
        """The text with ``***NAME***`` in place of each value."""
        return self._pattern.sub(lambda found: f"***{self._names[found[0]]}***", text) if self._pattern else text

    def out_of_failure(self, failure: Failure) -> Failure:
        return replace(failure, message=self.out_of(failure.message)[:4096], tail=self.out_of(failure.tail)[-65536:])
