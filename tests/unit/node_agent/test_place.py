"""Code bundles on a node, what a job needs there, and secrets in what leaves it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from builders_leases import a_spec
from hadare.machines.belongings import SENT_CODE
from hadare.model.errors import Broken, Rejected
from hadare.model.leases import Failure
from hadare.runtime.memory import MemoryHub
from hadare.training.needs import Unmet
from hadare.wire import bundles
from hadare.wire.subjects import CODE
from hadare_node_agent.code import CodeCache, remove_tree
from hadare_node_agent.place import Place, Secrets

BARE_PYTHON = os.path.realpath(sys.executable)
"""The one that made this environment: it has none of its packages."""


class World:
    """A store with bundles and a cache of them."""

    def __init__(self, folder: Path, most: int = 2) -> None:
        self.folder = folder
        self.objects = MemoryHub().connect("agent").objects(CODE)
        self.most = most
        self.cache = self.new_cache()

    def new_cache(self) -> CodeCache:
        return CodeCache(self.objects, self.folder / "code", patience_s=0.0, most=self.most)

    async def send(self, value: int) -> str:
        source = self.folder / f"source-{value}"
        (source / "pkg").mkdir(parents=True)
        (source / "pkg" / "mine.py").write_text(f"VALUE = {value}\n")
        bundle = bundles.pack(source)
        archive = self.folder / "archive"
        archive.write_bytes(bundle.data)
        await self.objects.put(archive, SENT_CODE)
        return bundle.sha256

    def kept(self) -> set[str]:
        return {path.name for path in (self.folder / "code").iterdir()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def unmet(place: Place, **spec: Any) -> Failure:
    with pytest.raises(Unmet) as refusal:
        await place.prepare("p1", a_spec(**spec))
    return refusal.value.failure


async def test_a_bundle_is_unpacked_read_only(world: World) -> None:
    folder = await world.cache.folder("p1", await world.send(1))
    assert (folder / "pkg" / "mine.py").read_text() == "VALUE = 1\n"
    assert not [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o222]


async def test_a_bundle_is_fetched_once(world: World) -> None:
    code = await world.send(1)
    first = await world.cache.folder("p1", code)
    await world.objects.delete(f"code.{code}")
    assert await world.cache.folder("p2", code) == first


async def test_the_bundle_that_waited_longest_goes_first_but_never_one_in_use(world: World) -> None:
    codes = [await world.send(number) for number in range(4)]
    for number, code in enumerate(codes):
        await world.cache.folder(f"p{number}", code)
        if number:
            world.cache.release(f"p{number}")
    assert world.kept() == {codes[0], codes[3]}


async def test_what_an_earlier_incarnation_unpacked_is_not_believed(world: World) -> None:
    code = await world.send(1)
    folder = await world.cache.folder("p1", code)
    (folder / "pkg" / "mine.py").chmod(0o644)
    (folder / "pkg" / "mine.py").write_text("VALUE = 666\n")
    folder = await world.new_cache().folder("p1", code)
    assert (folder / "pkg" / "mine.py").read_text() == "VALUE = 1\n"


async def test_a_bundle_that_is_gone_fails_the_job_and_says_what_to_do(world: World) -> None:
    failure = await unmet(Place(world.cache, {}), code="a" * 64)
    assert (failure.kind, failure.node_specific) == ("import", False)
    assert "submit the job again" in failure.message


async def test_a_bundle_whose_content_is_another_is_refused(world: World) -> None:
    code = await world.send(1)
    other = await world.send(2)
    hub = world.objects
    hub._held[f"code.{code}"] = hub._held[f"code.{other}"]  # type: ignore[attr-defined]
    with pytest.raises(Rejected, match="not what it should be"):
        await world.cache.folder("p1", code)
    assert world.kept() == set()


async def test_a_job_with_code_is_given_its_folder_and_one_without_none(world: World) -> None:
    place = Place(world.cache, {})
    code = await world.send(1)
    assert await place.prepare("p1", a_spec(code=code)) == (str(world.folder / "code" / code),)
    assert await place.prepare("p2", a_spec()) == ()


async def test_requirements_and_data_are_checked_before_any_process(world: World) -> None:
    place = Place(world.cache, {"set": "imagenet"})
    assert (await unmet(place, requirements=("no-such-thing>=2",))).kind == "import"
    missing = await unmet(place, data=("set=imagenet", "/no/such/folder"))
    assert (missing.kind, missing.node_specific) == ("missing_data", True)


async def test_an_interpreter_without_hadare_is_refused_at_the_start(world: World) -> None:
    with pytest.raises(Broken, match="lacks hadare"):
        await Place(world.cache, {}, BARE_PYTHON).check_python()


async def test_an_interpreter_that_has_it_all_is_accepted(world: World) -> None:
    await Place(world.cache, {}, sys.executable).check_python()


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")


def test_secrets_are_replaced_by_their_names_the_longest_first() -> None:
    secrets = Secrets({"KEY": "abcdef", "LONGER": "abcdef-and-more", "DEBUG": "1", "PEM": "line-one\nline-two"})
    assert secrets.out_of("x=abcdef y=abcdef-and-more z=1 line-two") == "x=***KEY*** y=***LONGER*** z=1 ***PEM***"


def test_a_failure_leaves_without_secrets() -> None:
    failure = Failure(kind="exception", message="bad token s3cret!", tail="token = 's3cret!'")
    clean = Secrets({"TOKEN": "s3cret!"}).out_of_failure(failure)
    assert "s3cret!" not in repr(clean)


def test_a_job_without_env_has_nothing_to_hide() -> None:
    assert Secrets({}).out_of("anything") == "anything"
