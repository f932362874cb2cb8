"""Puts user code first on the import path of a fork, also before what its fork server has imported already."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

_NEEDED = frozenset({"hadare", "torch", "numpy", "safetensors", "msgpack", "msgspec"})
"""What the fork itself runs on: two of one of these in a process would not do."""


def put_first(folders: Sequence[str]) -> None:
    """Imports look into ``folders`` first. Modules of the same name that were imported from elsewhere are forgotten."""
    sys.path[:0] = folders
    for name in {name for folder in folders for name in _top_level(Path(folder))} - _NEEDED - sys.stdlib_module_names:
        for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
            del sys.modules[known]


def _top_level(folder: Path) -> list[str]:
    entries = folder.iterdir() if folder.is_dir() else ()
    return [entry.stem for entry in entries if entry.suffix == ".py" or entry.is_dir()]
