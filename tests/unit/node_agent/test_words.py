"""Leases in the words of forks."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders_leases import a_lease, a_spec
from hadare.machines import lease_commands as do
from hadare.model.jobs import ConsolidationSpec
from hadare.training import protocol
from hadare_node_agent.words import order_for


@pytest.mark.parametrize("how", [ConsolidationSpec(transport="full"), ConsolidationSpec(transport="bf16")])
def test_a_fork_hands_in_its_result_as_its_job_wants(how: ConsolidationSpec) -> None:
    lease = a_lease(spec=a_spec(consolidation=how))
    command = do.Assign(process="p", lease_id="l", lease=lease, base_path="/base", left_s=5.0)
    order = order_for(command, Path("/out"), 0.0, 1.0)
    assert isinstance(order, protocol.Train)
    assert order.bf16 == (how.transport == "bf16")
