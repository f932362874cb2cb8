"""Weights files as patches of another: what is equal is not carried, and nothing but the whole ever comes of one."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from builders_training import a_file
from hadare.training import patches
from hadare.training.patches import MAGIC, Header, PatchError
from hadare.training.transport import pack

FROZEN = {
    "model.backbone.w": torch.arange(60_000, dtype=torch.float32).reshape(200, 300),
    "model.backbone.b": torch.ones(300),
}


def hash_of(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def a_version(path: Path, head: float, **more: Tensor) -> Path:
    return a_file(path, {**FROZEN, "model.head.w": torch.full((40,), head), **more})


def made(folder: Path, new: Path, base: Path) -> Path:
    patch = folder / "patch"
    assert patches.make(new, base, patch, base_sha256=hash_of(base)) == hash_of(new)
    return patch


def applied(patch: Path, base: Path, out: Path, most_bytes: int = 10**6) -> bytes:
    patches.apply(patch, base, out, base_sha256=hash_of(base), most_bytes=most_bytes)
    return out.read_bytes()


def test_of_a_frozen_backbone_only_the_head_is_carried(tmp_path: Path) -> None:
    base, new = a_version(tmp_path / "base", 1.0), a_version(tmp_path / "new", 2.0)
    patch = made(tmp_path, new, base)
    assert patch.stat().st_size < 2_000 < 240_000 < new.stat().st_size
    assert applied(patch, base, tmp_path / "out") == new.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "new", "out", "patch"]


def test_a_patch_can_be_made_whole_in_its_own_place(tmp_path: Path) -> None:
    base, new = a_version(tmp_path / "base", 1.0), a_version(tmp_path / "new", 2.0)
    patch = made(tmp_path, new, base)
    assert applied(patch, base, patch) == new.read_bytes()


def test_tensors_that_the_base_lacks_or_has_in_another_shape_are_carried(tmp_path: Path) -> None:
    base = a_version(tmp_path / "base", 1.0)
    state = torch.full((40,), 3.0)
    new = a_file(tmp_path / "new", {**FROZEN, "model.head.w": torch.ones(2, 20), "optim.head.w.exp_avg": state})
    assert applied(made(tmp_path, new, base), base, tmp_path / "out") == new.read_bytes()


def test_what_a_frozen_tensor_changed_is_not_carried_in_bf16_either(tmp_path: Path) -> None:
    base, new = a_version(tmp_path / "base", 1.0), a_version(tmp_path / "new", 2.0)
    pack(new, base)
    assert new.stat().st_size > 120_000
    patch = made(tmp_path, new, base)
    assert patch.stat().st_size < 2_000
    assert applied(patch, base, tmp_path / "out") == new.read_bytes()


def test_where_all_has_changed_there_is_no_patch(tmp_path: Path) -> None:
    base = a_file(tmp_path / "base", {"model.w": torch.zeros(5000), "model.b": torch.ones(10)})
    new = a_file(tmp_path / "new", {"model.w": torch.ones(5000), "model.b": torch.ones(10)})
    assert patches.make(new, base, tmp_path / "patch", base_sha256=hash_of(base)) == ""
    assert not (tmp_path / "patch").exists()


@pytest.mark.parametrize("content", [b"", b"short", b"not a weights file at all", (2**40).to_bytes(8, "little") * 9])
def test_of_what_is_no_weights_file_there_is_no_patch(tmp_path: Path, content: bytes) -> None:
    good, odd = a_version(tmp_path / "good", 1.0), tmp_path / "odd"
    odd.write_bytes(content)
    assert patches.make(odd, good, tmp_path / "patch", base_sha256="") == ""
    assert patches.make(good, odd, tmp_path / "patch", base_sha256="") == ""
    assert patches.header_of(odd) is None


def test_a_patch_of_another_base_makes_nothing(tmp_path: Path) -> None:
    base, new, other = (a_version(tmp_path / name, at) for at, name in enumerate(("base", "new", "other")))
    with pytest.raises(PatchError, match="is not a patch that makes this"):
        applied(made(tmp_path, new, base), other, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_patch_that_makes_another_file_than_was_asked_for_makes_nothing(tmp_path: Path) -> None:
    base, new = a_version(tmp_path / "base", 1.0), a_version(tmp_path / "new", 2.0)
    patch = made(tmp_path, new, base)
    asked = {"base_sha256": hash_of(base), "whole_sha256": "0" * 64}
    with pytest.raises(PatchError, match="is not a patch that makes this"):
        patches.apply(patch, base, tmp_path / "out", most_bytes=10**6, **asked)


def forged(folder: Path, parts: list[object], data: bytes, **claims: object) -> Path:
    whole = {"base": hash_of(folder / "base"), "whole": "0" * 64, "bytes": 8, "parts": parts, **claims}
    encoded = json.dumps(whole).encode()
    path = folder / "forged"
    path.write_bytes(MAGIC + len(encoded).to_bytes(8, "little") + encoded + data)
    return path


@pytest.mark.parametrize(
    ("parts", "data", "claims", "fault"),
    [
        ([["data", 0, 8]], b"12345678", {}, "does not make what it says"),
        ([["data", 0, 8]], b"1234", {}, "does not hold as many bytes"),
        ([["data", 0, 4]], b"1234", {}, "not as long as the whole"),
        ([["data", 0, 12], ["zero", 0, -4]], b"123456789012", {}, "header of a patch is wrong"),
        ([["copy", 10**9, 8]], b"", {}, "bytes that its base does not have"),
        ([["copy", -8, 8]], b"", {}, "header of a patch is wrong"),
        ([["zero", 0, 10**15]], b"", {"bytes": 10**15}, "would make 1000000000000000 bytes of at most 1000000"),
        ([["link", 0, 8]], b"", {}, "header of a patch is wrong"),
        ([["zero", 0, "8"]], b"", {}, "header of a patch is wrong"),
        ("none", b"", {}, "header of a patch is wrong"),
    ],
)
def test_a_forged_patch_makes_nothing_and_says_why(
    tmp_path: Path, parts: list[object], data: bytes, claims: dict[str, object], fault: str
) -> None:
    base = a_version(tmp_path / "base", 1.0)
    patch = forged(tmp_path, parts, data, **claims)
    with pytest.raises(PatchError, match=fault):
        applied(patch, base, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "forged"]


def test_a_header_that_is_longer_than_its_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "patch"
    path.write_bytes(MAGIC + (2**40).to_bytes(8, "little") + b"{}")
    with pytest.raises(PatchError, match="has 1099511627776 bytes"):
        patches.header_of(path)


VALUES = st.lists(st.sampled_from([0.0, 1.0, -2.5]), min_size=1, max_size=40)
FILES = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), VALUES, min_size=1)


@given(before=FILES, after=FILES, same=st.sets(st.sampled_from(["a", "b", "c", "d"])))
def test_whatever_has_changed_a_patch_makes_the_very_file(
    tmp_path_factory: pytest.TempPathFactory,
    before: dict[str, list[float]],
    after: dict[str, list[float]],
    same: set[str],
) -> None:
    folder = tmp_path_factory.mktemp("patch")
    kept = {**after, **{name: before[name] for name in same if name in before}}
    base, new = (
        a_file(folder / name, {f"model.{key}": torch.tensor(values * 50) for key, values in content.items()})
        for name, content in (("base", before), ("new", kept))
    )
    patch = folder / "patch"
    if patches.make(new, base, patch, base_sha256=hash_of(base)):
        assert applied(patch, base, folder / "out") == new.read_bytes()
        head = patches.header_of(patch)
        assert isinstance(head, Header)
        assert head.bytes == new.stat().st_size
        assert msgspec.json.decode(msgspec.json.encode(head), type=Header) == head
    else:
        assert not patch.exists()
