"""Whether a file can be a weights file, by its header alone: who submits a job has neither torch nor safetensors.

The format (https://github.com/huggingface/safetensors): eight bytes that give the length of a JSON header, the header,
which says of each tensor where its bytes lie, and these bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

_LENGTH = 8
# What the library itself bears.
_MOST_HEADER = 100_000_000


def fault_of(path: Path) -> str:
    """What is wrong with it, or ''. Raises ``OSError`` if it cannot be read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = int.from_bytes(file.read(_LENGTH), "little")
        if size < _LENGTH or header > min(size - _LENGTH, _MOST_HEADER):
            return "its header is longer than the file"
        try:
            tensors = json.loads(file.read(header))
            tensors.pop("__metadata__", None)
            end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return "its header is not one of safetensors"
    if not tensors:
        return "it holds no tensor"
    missing = _LENGTH + header + end - size
    return f"it is cut off: {missing} bytes are missing" if missing > 0 else ""
