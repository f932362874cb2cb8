"""Torch takes seconds and hundreds of megabytes to import: only forks, and the tracker when it averages, need it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "hadare_gateway.__main__",
        "hadare_pricing.__main__",
        "hadare_allocator.__main__",
        "hadare_jobtracker.__main__",
        "hadare_node_agent.__main__",
        "hadare.cli.main",
        "hadare.client",
        "hadare.local.commands",
    ],
)
def test_it_starts_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
