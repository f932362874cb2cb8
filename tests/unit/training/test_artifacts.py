"""Files that a task writes beside its model: handed in with a result, kept with the version, bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hadare.training import artifacts as module
from hadare.training.artifacts import artifacts, collect, extract, listed
from hadare.training.averaging import ForkFile, consolidate
from hadare.training.exporting import state_dict_of
from hadare.training.tensorfile import WeightsError
from hadare.training.transport import pack
from hadare.training.weights import load_state, save_state


def folder_with(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    folder.mkdir(exist_ok=True)
    return folder


def a_result(path: Path, files: dict[str, bytes]) -> Path:
    """A fork's file, with the files that it wrote."""
    written, _ = collect(folder_with(path.with_name(f"{path.name}.files"), files))
    torch.manual_seed(0)
    save_state(path, nn.Linear(2, 1), None, extra=written)
    return path


def version_of(folder: Path, base: Path, *forks: tuple[int, dict[str, bytes]]) -> Path:
    results = [
        ForkFile(fork=number, path=a_result(folder / f"{base.name}-fork{number}", files), steps=steps)
        for number, (steps, files) in enumerate(forks)
    ]
    out = folder / f"{base.name}+"
    assert len(consolidate(base, results, out).accepted) == len(forks)
    return out


def contents(version: Path, folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in extract(version, folder)}


def test_what_a_task_writes_is_kept_with_the_version(tmp_path: Path) -> None:
    version = version_of(
        tmp_path, a_result(tmp_path / "v0", {}), (5, {"a/words.txt": b"apple", "plot.png": b"\x89PNG"})
    )
    assert listed(version) == {"a/words.txt": 5, "plot.png": 4}
    assert contents(version, tmp_path / "out") == {"a/words.txt": b"apple", "plot.png": b"\x89PNG"}


def test_of_one_name_the_fork_with_most_steps_counts(tmp_path: Path) -> None:
    forks = (3, {"log": b"slow", "mine": b"1"}), (7, {"log": b"fast"})
    version = version_of(tmp_path, a_result(tmp_path / "v0", {}), *forks)
    assert contents(version, tmp_path / "out") == {"log": b"fast", "mine": b"1"}


def test_files_of_the_version_before_stay_until_they_are_written_again(tmp_path: Path) -> None:
    first = version_of(tmp_path, a_result(tmp_path / "v0", {}), (1, {"old": b"1", "both": b"1"}))
    second = version_of(tmp_path, first, (1, {"both": b"22"}))
    assert contents(second, tmp_path / "out") == {"old": b"1", "both": b"22"}


@pytest.mark.parametrize(
    ("fast", "slow", "kept"),
    [
        ({"plots": b"1"}, {"plots/a/b": b"2", "c": b"3"}, {"plots": b"1", "c": b"3"}),
        ({"plots/a/b": b"2"}, {"plots": b"1", "plots.txt": b"3"}, {"plots/a/b": b"2", "plots.txt": b"3"}),
    ],
)
def test_a_file_of_one_fork_and_a_folder_of_another_do_not_share_a_name(
    tmp_path: Path, fast: dict[str, bytes], slow: dict[str, bytes], kept: dict[str, bytes]
) -> None:
    version = version_of(tmp_path, a_result(tmp_path / "v0", {}), (3, slow), (7, fast))
    assert contents(version, tmp_path / "out") == kept


def test_a_file_may_become_a_folder_in_a_later_version(tmp_path: Path) -> None:
    first = version_of(tmp_path, a_result(tmp_path / "v0", {}), (1, {"plots": b"1"}))
    second = version_of(tmp_path, first, (1, {"plots/a": b"2"}))
    assert contents(second, tmp_path / "out") == {"plots/a": b"2"}


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    version = a_result(tmp_path / "v0", {"plots/a": b"1"})
    folder_with(tmp_path / "out", {"plots": b"1"})
    with pytest.raises(WeightsError, match="plots/a cannot be written: "):
        extract(version, tmp_path / "out")


def test_a_file_that_goes_away_meanwhile_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path / "files", {"a": b"1", "b": b"2"})
    look = module._files

    def look_and_lose(folder: Path) -> list[Path]:
        paths = list(look(folder))
        (folder / "a").unlink()
        (folder / "b").write_bytes(b"")
        return paths

    monkeypatch.setattr(module, "_files", look_and_lose)
    assert collect(folder) == ({}, ["a: No such file or directory"])


def test_what_is_too_much_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    monkeypatch.setattr(module, "MOST_FILES", 2)
    files = {"a": b"1234", "b": b"1" * 11, "c": b"123456", "d": b"1"}
    found, left_out = collect(folder_with(tmp_path / "files", files))
    assert sorted(found) == ["artifact.a", "artifact.c"]
    assert [why.split(":")[0] for why in left_out] == ["b", "d"]


def test_a_version_does_not_grow_beyond_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    first = version_of(tmp_path, a_result(tmp_path / "v0", {}), (1, {"a": b"1" * 6}))
    second = version_of(tmp_path, first, (1, {"b": b"1" * 5}))
    assert listed(second) == {"b": 5}


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "files", {"a": b"1"})
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    assert list(collect(folder)[0]) == ["artifact.a"]


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../x", "a\\b", "a\nb"])
def test_a_name_that_leads_out_of_the_folder_is_neither_kept_nor_written(tmp_path: Path, name: str) -> None:
    hostile = {f"artifact.{name}": torch.ones(3, dtype=torch.uint8)}
    save_state(tmp_path / "fork", nn.Linear(2, 1), None, extra=hostile)
    with pytest.raises(WeightsError, match="not a name"):
        extract(tmp_path / "fork", tmp_path / "out")
    base = a_result(tmp_path / "v0", {})
    consolidate(base, [ForkFile(fork=0, path=tmp_path / "fork", steps=1)], tmp_path / "v1")
    assert listed(tmp_path / "v1") == {}


def test_a_version_with_files_loads_and_is_exported_as_any_other(tmp_path: Path) -> None:
    version = version_of(tmp_path, a_result(tmp_path / "v0", {}), (1, {"a": b"1"}))
    load_state(version, nn.Linear(2, 1), None)
    assert set(state_dict_of(version)) == {"weight", "bias"}


def test_files_travel_with_changes_in_bf16_too(tmp_path: Path) -> None:
    base = a_result(tmp_path / "v0", {})
    fork = a_result(tmp_path / "fork", {"a": b"123"})
    pack(fork, base)
    consolidate(base, [ForkFile(fork=0, path=fork, steps=1)], tmp_path / "v1")
    assert listed(tmp_path / "v1") == {"a": 3}


def test_the_folder_is_the_environments_and_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADARE_ARTIFACTS", str(tmp_path / "here"))
    assert artifacts() == tmp_path / "here"
    assert (tmp_path / "here").is_dir()
