"""A file that is being fetched: what came stays, is gone on with, and takes its place whole or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from hadare.model.errors import Rejected, Unavailable
from hadare.model.jobs import ObjectRef
from hadare.runtime.parts import Part, remove_old_parts

CONTENT = b"0123456789" * 100
REF = ObjectRef(name="a.x", sha256=hashlib.sha256(CONTENT).hexdigest(), bytes=len(CONTENT))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def cut_off_after(count: int, path: Path) -> None:
    def fetch() -> None:
        with Part(REF, path) as part:
            part.append([CONTENT[:count]], {"last": 7})
            raise Unavailable("the line is cut")

    with pytest.raises(Unavailable):
        fetch()


def fetch_the_rest(count: int, path: Path) -> None:
    with Part(REF, path) as part:
        part.append([CONTENT[count:]])
        part.finish()


def test_a_file_is_in_its_place_only_when_it_is_whole(tmp_path: Path) -> None:
    with Part(REF, tmp_path / "copy") as part:
        part.append([CONTENT[:500], CONTENT[500:]])
        assert not (tmp_path / "copy").exists()
        part.finish()
    assert names_in(tmp_path) == ["copy"]
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_a_part_whose_owner_moves_it_away_in_the_same_moment_is_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fetches of one object: the second finds the part just when the first has got it whole."""
    really_open = os.open

    def open_while_it_finishes(path: Path, flags: int, mode: int = 0o777) -> int:
        monkeypatch.setattr(os, "open", really_open)
        handle = really_open(path, flags, mode)
        path.replace(tmp_path / "copy")
        return handle

    monkeypatch.setattr(os, "open", open_while_it_finishes)
    with Part(REF, tmp_path / "copy") as part:
        part.append([CONTENT])
        part.finish()
    assert names_in(tmp_path) == ["copy"]
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_what_came_before_a_cut_is_gone_on_with(tmp_path: Path) -> None:
    cut_off_after(300, tmp_path / "copy")
    with Part(REF, tmp_path / "copy") as part:
        assert (part.done, part.mark) == (300, {"last": 7})
        part.append([CONTENT[300:]])
        part.finish()
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert names_in(tmp_path) == ["copy"]


def test_bytes_behind_the_last_mark_do_not_count(tmp_path: Path) -> None:
    cut_off_after(300, tmp_path / "copy")
    (left,) = tmp_path.glob(".*.part")
    left.write_bytes(left.read_bytes() + b"half a chunk")
    with Part(REF, tmp_path / "copy") as part:
        part.append([CONTENT[part.done :]])
        part.finish()
    assert (tmp_path / "copy").read_bytes() == CONTENT


@pytest.mark.parametrize("mark", ["", "[]", '{"done": 5000, "mark": {}}', '{"done": -1, "mark": {}}', '{"done": "x"}'])
def test_a_mark_that_makes_no_sense_costs_a_transfer_from_the_start(tmp_path: Path, mark: str) -> None:
    cut_off_after(300, tmp_path / "copy")
    (left,) = tmp_path.glob(".*.mark")
    left.write_text(mark)
    with Part(REF, tmp_path / "copy") as part:
        assert part.done == 0


def test_a_part_that_was_damaged_is_found_out_at_the_end_and_removed(tmp_path: Path) -> None:
    cut_off_after(300, tmp_path / "copy")
    (left,) = tmp_path.glob(".*.part")
    left.write_bytes(b"x" * 300)
    with pytest.raises(Rejected):
        fetch_the_rest(300, tmp_path / "copy")
    assert names_in(tmp_path) == []


def test_two_at_once_do_not_write_into_one_part(tmp_path: Path) -> None:
    with Part(REF, tmp_path / "copy") as one, Part(REF, tmp_path / "copy") as two:
        one.append([CONTENT[:100]])
        two.append([CONTENT])
        two.finish()
        one.append([CONTENT[100:]])
        one.finish()
    assert names_in(tmp_path) == ["copy"]
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_another_content_for_the_same_place_begins_anew(tmp_path: Path) -> None:
    cut_off_after(300, tmp_path / "copy")
    with Part(ObjectRef(name="b.y", sha256="1" * 64, bytes=5), tmp_path / "copy") as part:
        assert part.done == 0


def test_parts_that_nobody_goes_on_with_are_removed_once_they_are_old(tmp_path: Path) -> None:
    cut_off_after(300, tmp_path / "old")
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    cut_off_after(300, tmp_path / "young")
    assert remove_old_parts(tmp_path, 3600.0) == 2
    assert all("young" in name for name in names_in(tmp_path))
