"""Seeds of NATS users: the secret half of an nkey, in a file of its own."""

from __future__ import annotations

import os
from pathlib import Path

import nkeys

from hadare.model.errors import Broken


def new_seed() -> bytes:
    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return seed


def public_key(seed_file: Path) -> str:
    """The public half of a seed. Raises ``Broken`` if the file holds none."""
    try:
        pair = nkeys.from_seed(bytearray(seed_file.read_bytes().strip()))
        key: str = pair.public_key.decode()
    except (OSError, ValueError, nkeys.NkeysError) as error:
        raise Broken(f"{seed_file} holds no seed of a NATS user: {error}") from error
    return key


def inbox_prefix(user: str) -> str:
    """Where a user's answers arrive; ``user`` is its name or its public key. Nobody else may listen there."""
    return f"_INBOX_{user}"
