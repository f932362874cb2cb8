from __future__ import annotations

from hadare.training.outputs import LineCutter


def test_lines_are_cut_where_they_end_however_they_arrive() -> None:
    cutter = LineCutter()
    assert cutter.feed(b"one\ntw", 0.0) == ["one"]
    assert cutter.feed(b"o\n", 0.0) == ["two"]


def test_the_last_line_needs_no_end() -> None:
    cutter = LineCutter()
    cutter.feed(b"half", 0.0)
    assert cutter.end() == ["half"]


def test_a_line_without_end_is_cut_at_the_bound() -> None:
    assert LineCutter(max_line=4).feed(b"abcdefghij", 0.0) == ["abcd", "efgh"]


def test_an_endless_print_is_left_out_and_counted() -> None:
    cutter = LineCutter(max_window=10)
    assert cutter.feed(b"1234\n1234\n1234\n1234\n", 0.0) == ["1234", "1234"]
    assert cutter.feed(b"more\n", 1.0) == ["… 10 bytes of output left out: too much at once", "more"]


def test_what_was_left_out_is_said_at_the_end() -> None:
    cutter = LineCutter(max_window=5)
    cutter.feed(b"1234\n1234\n", 0.0)
    assert cutter.end() == ["… 5 bytes of output left out: too much at once"]


def test_bytes_that_are_not_text_are_shown_as_such() -> None:
    assert LineCutter().feed(b"\xff\n", 0.0) == ["�"]
