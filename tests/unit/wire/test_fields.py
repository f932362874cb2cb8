"""Names are whole: what a pattern allows, it allows to the last character."""

from __future__ import annotations

import pytest

from hadare.model.devices import NodeWish
from hadare.model.errors import Rejected
from hadare.model.jobs import JobSpec, ObjectRef
from hadare.wire import codec


@pytest.mark.parametrize("name", ["n1\n", "N1", "-n", "n-", "n.1", "", "n" * 64, "n 1"])
def test_a_node_name_that_could_not_be_a_part_of_a_subject_is_refused(name: str) -> None:
    with pytest.raises(Rejected, match="NodeWish"):
        codec.convert({"node": name, "drain": True}, NodeWish)


@pytest.mark.parametrize("workload", ["pkg.mod:Class\n", "pkg", "pkg:", ":Class", "pkg mod:Class", "os;x:Y"])
def test_a_workload_that_is_no_import_path_is_refused(workload: str) -> None:
    with pytest.raises(Rejected, match="JobSpec"):
        codec.convert({"workload": workload, "total_steps": 1, "batch_size": 1}, JobSpec)


def test_a_hash_of_another_length_is_refused() -> None:
    with pytest.raises(Rejected, match="ObjectRef"):
        codec.convert({"name": "x", "sha256": "0" * 63 + "\n", "bytes": 1}, ObjectRef)
