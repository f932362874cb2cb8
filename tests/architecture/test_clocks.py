"""A wall clock may jump by an hour. Nothing that is timed, ordered or fenced may read one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\(|datetime\.(now|utcnow)\(|date\.today\(|time\.(gmtime|localtime)\(")

ALLOWED = {
    "libs/hadare/runtime/parts.py": "the age of files, which their file system dates by the same clock",
    "libs/hadare/runtime/nats_objects.py": "the date that other tools show for an object",
    "libs/hadare/runtime/nats_micro.py": "when a service was started, for people",
    "libs/hadare/local/commands.py": "the name of a report's folder",
    "services/gateway/hadare_gateway/submissions.py": "when a job was submitted, for people",
}
"""Where one is read, and what for. Benchmarks measure processes against each other on one machine."""


def test_a_wall_clock_is_read_for_people_alone() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for folder in ("libs", "services")
        for path in (ROOT / folder).rglob("*.py")
        if "bench" not in path.parts and WALL_CLOCK.search(path.read_text())
    }
    assert readers == set(ALLOWED)
