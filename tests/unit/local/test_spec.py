from pathlib import Path

import pytest

from hadare.local.spec import cluster_from, default_cluster, parse_cluster, unknown_types
from hadare.model.errors import Rejected


def refusal(plain: object) -> str:
    with pytest.raises(Rejected) as caught:
        cluster_from(plain, "cluster.yaml")
    return str(caught.value)


def test_terms_give_numbered_nodes_of_each_type() -> None:
    spec = parse_cluster("2x4:V100,1x1:K80")
    assert [(n.name, n.devices[0].type, n.devices[0].count) for n in spec.nodes] == [
        ("v100-1", "V100", 4),
        ("v100-2", "V100", 4),
        ("k80-1", "K80", 1),
    ]


def test_a_type_that_comes_twice_goes_on_counting() -> None:
    assert [n.name for n in parse_cluster("1x2:T4,1x4:T4").nodes] == ["t4-1", "t4-2"]


def test_a_term_without_a_number_of_nodes_is_one_node() -> None:
    assert len(parse_cluster("4:V100").nodes) == 1


@pytest.mark.parametrize("text", ["V100", "5x4", "5x4:", "0x4:V100", "1x0:V100", "1x1:V100,", "300x1:V100", "2x-1:T4"])
def test_a_term_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match="cluster"):
        parse_cluster(text)


def test_the_faulty_term_is_named() -> None:
    with pytest.raises(Rejected, match=r"'K80' is not .* - at term 2"):
        parse_cluster("1x1:V100,K80")


def test_the_default_is_five_nodes_of_unequal_types() -> None:
    spec = default_cluster()
    assert [node.devices[0].type for node in spec.nodes] == ["V100", "P100", "T4", "K80", "T400"]
    assert all(node.devices[0].count == 1 for node in spec.nodes)


def test_a_file_gives_nodes_labels_and_emulation(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "nodes: [{name: a, devices: [{type: V100, count: 2}], labels: {zone: x}}]\n"
        "emulation: {base_rate: 40, workloads: {'m:C': 7}}\n"
    )
    spec = parse_cluster(str(file))
    assert spec.nodes[0].labels == {"zone": "x"}
    assert spec.emulation.base_rate == 40
    assert spec.emulation.workloads == {"m:C": 7}


def test_a_node_without_devices_is_allowed() -> None:
    assert cluster_from({"nodes": [{"name": "a"}]}, "f").nodes[0].devices == ()


def test_a_wrong_type_names_its_path() -> None:
    assert "$.nodes[0].devices[0].count" in refusal(
        {"nodes": [{"name": "a", "devices": [{"type": "T4", "count": "x"}]}]}
    )


def test_an_unknown_field_names_its_path_and_the_known_ones() -> None:
    text = refusal({"nodes": [{"name": "a", "devices": [{"type": "T4", "cuont": 2}]}]})
    assert "'cuont'" in text
    assert "count, type" in text
    assert "$.nodes[0].devices[0]" in text


def test_two_nodes_of_one_name_are_refused() -> None:
    assert "$.nodes[1].name" in refusal({"nodes": [{"name": "a"}, {"name": "a"}]})


def test_a_cluster_of_no_nodes_is_refused() -> None:
    assert "$.nodes" in refusal({"nodes": []})


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(Rejected, match="cannot read"):
        parse_cluster("missing.yaml")


def test_broken_yaml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("nodes: [")
    with pytest.raises(Rejected, match="no valid YAML"):
        parse_cluster(str(file))


def test_a_type_without_figures_is_told_with_the_nearest_known_one() -> None:
    spec = parse_cluster("1x1:V10O,1x1:Tesla-T4,1x1:Abacus")
    assert unknown_types(spec) == (
        "no figures are known of a Abacus: it counts as a T4",
        "no figures are known of a V10O: it counts as a T4; did you mean V100?",
    )
