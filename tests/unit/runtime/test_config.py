from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from hadare.runtime.config import BadConfig, load


@dataclass(frozen=True, kw_only=True)
class Settings:
    name: str
    count: int = 3
    ratio: float = 0.5
    on: bool = False
    folder: Path = Path("/default")
    limit: int | None = 7
    mode: Literal["fast", "slow"] = "fast"
    tags: str = field(default="none")

    def __post_init__(self) -> None:
        if self.mode == "slow" and self.count > 10:
            raise ValueError("slow and many do not go together")


def test_what_is_not_set_keeps_its_default() -> None:
    assert load(Settings, {"HADARE_NAME": "n"}) == Settings(name="n")


def test_every_kind_of_field_is_read() -> None:
    environ = {
        "HADARE_NAME": "n",
        "HADARE_COUNT": " 8 ",
        "HADARE_RATIO": "1e-3",
        "HADARE_ON": "Yes",
        "HADARE_FOLDER": "/tmp/x",
        "HADARE_LIMIT": "9",
        "HADARE_MODE": "slow",
        "SOMETHING_ELSE": "ignored",
    }
    read = load(Settings, environ)
    assert read == Settings(name="n", count=8, ratio=0.001, on=True, folder=Path("/tmp/x"), limit=9, mode="slow")


def test_empty_means_none_for_an_optional_field_and_the_default_for_others() -> None:
    read = load(Settings, {"HADARE_NAME": "n", "HADARE_LIMIT": "", "HADARE_COUNT": ""})
    assert (read.limit, read.count) == (None, 3)


def test_all_faults_are_reported_at_once_with_variable_and_value() -> None:
    environ = {"HADARE_COUNT": "many", "HADARE_ON": "maybe", "HADARE_RATIO": "nan", "HADARE_MODE": "medium"}
    with pytest.raises(BadConfig) as bad:
        load(Settings, environ)
    text = str(bad.value)
    assert len(bad.value.faults) == 5
    for part in ("HADARE_NAME is not set", "HADARE_COUNT='many'", "true or false", "a number", "fast, slow"):
        assert part in text


def test_a_refused_combination_is_a_fault_too() -> None:
    with pytest.raises(BadConfig, match="do not go together"):
        load(Settings, {"HADARE_NAME": "n", "HADARE_MODE": "slow", "HADARE_COUNT": "11"})


def test_another_prefix_is_honoured() -> None:
    assert load(Settings, {"X_NAME": "n"}, prefix="X_").name == "n"


def test_a_field_of_a_kind_that_no_string_can_be_is_a_bug() -> None:
    @dataclass(frozen=True)
    class Odd:
        things: list[str]

    with pytest.raises(TypeError):
        load(Odd, {"HADARE_THINGS": "a"})
