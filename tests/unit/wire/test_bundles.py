"""What can be sent as code and what cannot, at both ends."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from hadare.model.errors import Rejected
from hadare.wire import bundles


def a_folder(root: Path, name: str = "code") -> Path:
    folder = root / name
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("A = 1\n")
    (folder / "pkg" / "__init__.py").write_text("")
    return folder


def a_tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def a_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_is_packed_is_unpacked(tmp_path: Path) -> None:
    bundle = bundles.pack(a_folder(tmp_path))
    assert bundles.unpack(bundle.data, tmp_path / "out") == 2
    assert names_in(tmp_path / "out") == ["pkg/__init__.py", "train.py"]
    assert (tmp_path / "out" / "train.py").read_text() == "A = 1\n"


def test_equal_folders_make_equal_bundles_whatever_their_times(tmp_path: Path) -> None:
    one, other = a_folder(tmp_path, "one"), a_folder(tmp_path, "other")
    os.utime(other / "train.py", (1, 1))
    assert bundles.pack(one).sha256 == bundles.pack(other).sha256


def test_another_content_makes_another_bundle(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    before = bundles.pack(folder).sha256
    (folder / "train.py").write_text("A = 2\n")
    assert bundles.pack(folder).sha256 != before


def test_a_program_stays_one(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    (folder / "train.py").chmod(0o700)
    bundles.unpack(bundles.pack(folder).data, tmp_path / "out")
    assert os.access(tmp_path / "out" / "train.py", os.X_OK)
    assert (tmp_path / "out" / "pkg" / "__init__.py").stat().st_mode & 0o777 == 0o444


def test_repositories_caches_and_what_the_ignore_file_names_stay_at_home(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    for name in (".git/HEAD", "pkg/__pycache__/a.pyc", "data/big.bin", "notes.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".hadareignore").write_text("# not code\ndata/\n*.md\n")
    assert [name for _, name in bundles.files_of(folder)] == ["pkg/__init__.py", "train.py"]


def test_a_link_is_refused_by_name(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    (folder / "secret").symlink_to("/etc/passwd")
    with pytest.raises(Rejected, match="secret is a link"):
        bundles.pack(folder)


def test_a_pipe_is_refused_by_name(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    os.mkfifo(folder / "pipe")
    with pytest.raises(Rejected, match="pipe is neither"):
        bundles.pack(folder)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="no files"):
        bundles.pack(tmp_path)


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_FILES", 1)
    with pytest.raises(Rejected, match="more than 1 files"):
        bundles.pack(a_folder(tmp_path))


def test_too_many_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_BYTES", 4)
    with pytest.raises(Rejected, match="larger than"):
        bundles.pack(a_folder(tmp_path))


@pytest.mark.parametrize(
    "name", ["../evil.py", "/etc/evil.py", "a/../../evil.py", "a//b", "./a", "a\\b", "a\nb", "x" * 241, "a/" * 40 + "b"]
)
def test_a_name_that_leads_out_or_is_odd_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Rejected, match="not a name"):
        bundles.unpack(a_tar((a_member("fine.py"), b""), (a_member(name), b"x")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_anything_but_plain_files_is_refused(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(Rejected, match="not a plain file"):
        bundles.unpack(a_tar((a_member("a", kind, "/etc/passwd"), b"")), tmp_path / "out")


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="twice"):
        bundles.unpack(a_tar((a_member("a"), b"1"), (a_member("a"), b"2")), tmp_path / "out")


def test_a_file_that_is_also_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="as a file and as a folder"):
        bundles.unpack(a_tar((a_member("a"), b"1"), (a_member("a/b"), b"2")), tmp_path / "out")


def test_compressed_archives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="damaged"):
        bundles.unpack(gzip.compress(a_tar((a_member("a"), b"1"))), tmp_path / "out")


def test_a_bundle_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    data = a_tar((a_member("a"), b"1" * 5000))
    with pytest.raises(Rejected, match="damaged"):
        bundles.unpack(data[:2048], tmp_path / "out")
