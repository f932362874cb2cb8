"""Whatever a user sends, admission answers: with a spec, or with faults that say where."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hadare.machines.admission import check_spec, digest_of, read_spec
from hadare.model.errors import Rejected
from hadare.wire import codec

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SCALARS, inner, max_size=4), max_leaves=20
)
FIELDS = st.sampled_from(
    [
        *("name", "workload", "config", "total_steps", "batch_size", "gang", "mode", "max_forks", "until", "env"),
        *("constraints", "consolidation", "priority", "deadline", "seed", "code", "accounting", "total_step"),
    ]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=10,
)
SPECS = st.fixed_dictionaries(
    {
        "workload": st.just("pkg.mod:Net"),
        "total_steps": st.integers(1, 10**12),
        "batch_size": st.integers(1, 10**7),
    },
    optional={"config": st.dictionaries(st.text("abc", max_size=3), JSON, max_size=4), "seed": st.integers(0, 99)},
)


@given(ANYTHING)
def test_nothing_makes_validation_crash(raw: object) -> None:
    for fault in check_spec(raw):
        fault.path.encode()
        fault.message.encode()


@given(st.dictionaries(FIELDS, ANYTHING, max_size=8))
def test_no_value_of_a_known_field_makes_validation_crash(raw: dict[str, Any]) -> None:
    check_spec(raw)


@given(st.dictionaries(FIELDS, ANYTHING, max_size=8))
def test_what_has_no_faults_is_accepted_and_what_has_some_is_not(raw: dict[str, Any]) -> None:
    faulty = bool(check_spec(raw))
    try:
        read_spec(raw)
        accepted = True
    except Rejected:
        accepted = False
    assert accepted is not faulty


@given(SPECS)
def test_an_accepted_spec_survives_the_wire_with_the_same_digest(raw: dict[str, Any]) -> None:
    spec = read_spec(raw)
    for form in codec.Format:
        assert digest_of(codec.decode(codec.encode(spec, form), type(spec))) == digest_of(spec)
