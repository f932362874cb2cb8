"""Docker's own reading of docker-compose.yml. That it builds and trains is seen by deploy/smoke/run, in CI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.docker]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> list[str]:
    """The command; without Docker the tests are skipped, unless HADARE_REQUIRE_DOCKER=1."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0
        ):
            return command
    if os.environ.get("HADARE_REQUIRE_DOCKER") == "1":
        pytest.fail("HADARE_REQUIRE_DOCKER=1 and there is no Docker Compose")
    pytest.skip("no Docker Compose")


def read(compose: list[str], *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*compose, *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("profile", ["tools", "observability"])
def test_compose_reads_the_file_without_a_word(compose: list[str], profile: str) -> None:
    result = read(compose, "--profile", profile, "config", "-q")
    assert (result.returncode, result.stderr) == (0, "")


def test_settings_from_the_environment_reach_the_services(compose: list[str]) -> None:
    result = read(compose, "config", HADARE_PREFIX="c2", HADARE_ROUND_S="7", HADARE_NODE_2_DEVICES="2:K80")
    assert result.returncode == 0, result.stderr
    for wanted in ("HADARE_PREFIX: c2", "HADARE_DEVICES: 2:K80"):
        assert wanted in result.stdout
    assert json.dumps("7") in result.stdout
