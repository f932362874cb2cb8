"""The import contracts of pyproject.toml hold, and each of them breaks when a fault is planted against it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]

FAULTS = [
    ("services", "services/pricing/hadare_pricing", "import hadare_allocator"),
    ("services", "libs/hadare/cli", "import hadare_gateway"),
    ("layers", "libs/hadare/model", "import hadare.scheduling"),
    ("layers", "libs/hadare/scheduling", "import hadare.forking"),
    ("layers", "libs/hadare/wire", "import hadare.runtime"),
    ("layers", "libs/hadare/client", "import hadare.local"),
    ("pure", "libs/hadare/model", "import logging"),
    ("pure", "libs/hadare/machines", "from time import monotonic"),
    ("pure", "libs/hadare/scheduling", "import random"),
    ("pure", "libs/hadare/forking", "import torch"),
    ("training", "libs/hadare/training", "import hadare.runtime"),
    ("shells", "services/node_agent/hadare_node_agent", "import hadare.local"),
    ("bus", "services/gateway/hadare_gateway", "import nats"),
    ("torch", "services/allocator/hadare_allocator", "import hadare.training"),
]


def lint(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    roots = [tree / "libs", *sorted((tree / "services").iterdir())]
    return subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--no-logo", *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", tree)
    for folder in ("libs", "services"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


def test_every_import_contract_holds(copy: Path) -> None:
    result = lint(copy)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("contract", "package", "line"), FAULTS, ids=lambda value: str(value).replace("/", "."))
def test_a_planted_fault_breaks_its_contract(copy: Path, contract: str, package: str, line: str) -> None:
    planted = copy / package / "planted.py"
    planted.write_text(line + "\n")
    try:
        result = lint(copy, "--contract", contract)
    finally:
        planted.unlink()
    assert result.returncode == 1, result.stdout + result.stderr
    assert "1 broken" in result.stdout


def test_every_contract_has_a_planted_fault() -> None:
    assert {contract["id"] for contract in CONTRACTS} == {contract for contract, _, _ in FAULTS}
