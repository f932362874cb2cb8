"""The tutorial's code is what its readers run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from hadare.machines.admission import read_spec
from hadare.training.granted import Grant
from hadare.training.local import run_local
from hadare.training.worker import build_worker

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorials" / "port-a-script.md"


def marked(name: str) -> str:
    """A code block that the tutorial marks as tested."""
    found = re.search(rf"<!-- tested: {name} -->\n```\w+\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def _ported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits_script.py").write_text(marked("digits_script.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "digits_script", raising=False)


@pytest.mark.usefixtures("_ported")
def test_the_ported_script_reaches_its_target_without_a_cluster() -> None:
    spec = read_spec(yaml.safe_load(marked("job.yaml")), None)
    result = run_local(spec)
    assert result.steps == 800
    assert result.metrics["accuracy"] > 0.93


@pytest.mark.usefixtures("_ported")
def test_the_ported_script_goes_on_from_a_version(tmp_path: Path) -> None:
    first, second = (build_worker("digits_script:train", {}, 32, 0) for _ in range(2))
    first.train(Grant(quota=100, data_seed=1))
    first.save(tmp_path / "v1")
    second.load(tmp_path / "v1")
    second.train(Grant(quota=100, data_seed=2))
    assert second.evaluate()["accuracy"] >= first.evaluate()["accuracy"] - 0.02


def test_porting_takes_about_ten_lines() -> None:
    before = re.search(r"## The script before\n\n```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    assert before is not None
    old = {line.strip() for line in before[1].splitlines()}
    new = [line for line in marked("digits_script.py").splitlines() if line.strip() and line.strip() not in old]
    assert len(new) <= 13
