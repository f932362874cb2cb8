"""What an exception that leaves a fork means to its job."""

from __future__ import annotations

import pytest

from hadare.model.errors import text_of
from hadare.training.failures import failure_of


class Mute(RuntimeError):
    """Users' exceptions may fail when they are asked for their text."""

    def __str__(self) -> str:
        raise KeyError("no text")


def raised(error: Exception) -> Exception:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_an_exception_that_cannot_be_told_is_a_failure_with_its_type_and_its_place() -> None:
    failure = failure_of(raised(Mute()))
    assert (failure.kind, failure.message) == ("exception", "Mute: (its text could not be made: KeyError)")
    assert "in raised" in failure.tail


def test_an_exception_is_told_by_its_type_and_text() -> None:
    assert failure_of(raised(ValueError("too hot"))).message == "ValueError: too hot"


def test_a_text_is_what_the_error_says() -> None:
    assert text_of(ValueError("too hot")) == "too hot"
