"""Whether a file can be a weights file, by its header alone: who submits a job has neither torch nor safetensors.

The format (https://github.com/huggingface/safetensors): eight bytes that give the length of a JSON header, the header,
which says of each tensor where its bytes lie, and these bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LENGTH = 8
_METADATA = "__metadata__"
# What the library itself bears.
_MOST_HEADER = 100_000_000


def fault_of(path: Path) -> str:
    """What is wrong with it, or ''. Raises ``OSError`` if it cannot be read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        if size < _LENGTH or length > min(size - _LENGTH, _MOST_HEADER):
            return "its header is longer than the file"
        try:
            ends = [_end_of(tensor) for name, tensor in json.loads(file.read(length)).items() if name != _METADATA]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return "its header is not one of safetensors"
    if not ends:
        return "it holds no tensor"
    missing = _LENGTH + length + max(ends) - size
    if missing > 0:
        return f"it is cut off: {missing} bytes are missing"
    return f"{-missing} bytes follow its last tensor" if missing else ""


def _end_of(tensor: Any) -> int:
    """Where its bytes end. Raises what its header is not."""
    begin, end = tensor["data_offsets"]
    whole = all(isinstance(number, int) for number in (begin, end, *tensor["shape"]))
    if not whole or not 0 <= begin <= end or not isinstance(tensor["dtype"], str):
        raise ValueError("not a tensor's place")
    return int(end)
