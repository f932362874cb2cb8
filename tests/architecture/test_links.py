"""Documents point at things that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
DOCUMENTS = sorted(
    [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "services").glob("*/README.md"),
    ]
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(document: Path) -> None:
    targets = [link for link in LINK.findall(document.read_text()) if "://" not in link]
    missing = [link for link in targets if not (document.parent / link).exists()]
    assert missing == []


def test_the_readme_leads_to_every_document() -> None:
    reachable, waiting = set(), [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        if document in reachable or document.suffix != ".md":
            continue
        reachable.add(document)
        links = [link for link in LINK.findall(document.read_text()) if "://" not in link]
        for target in ((document.parent / link).resolve() for link in links):
            waiting.extend(sorted(target.glob("*.md")) if target.is_dir() else [target])
    assert sorted(str(d.relative_to(ROOT)) for d in DOCUMENTS if d not in reachable) == []
