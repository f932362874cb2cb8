"""Exit codes: what each error leads to, and that the documentation says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from hadare.cli.exit_codes import ExitCode, JobFailed, MissingPart, exit_code_of
from hadare.model.errors import Broken, HadareError, Rejected, Unavailable

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Rejected(400, "bad spec"), 2),
        (Rejected(413, "too large"), 2),
        (Rejected(404, "unknown"), 3),
        (Rejected(409, "taken"), 4),
        (Rejected(500, "a bug"), 70),
        (Unavailable("no answer"), 5),
        (MissingPart("no torch"), 7),
        (JobFailed("nan"), 1),
        (Broken("installation"), 70),
    ],
)
def test_each_error_has_its_exit_code(error: HadareError, code: int) -> None:
    assert exit_code_of(error) == code


def test_the_documentation_lists_every_exit_code_with_its_meaning() -> None:
    lines = (REFERENCE / "exit-codes.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    documented = {int(row[0]): row[2] for row in rows if row[0].isdecimal()}
    assert documented == {int(code): code.meaning for code in ExitCode}
