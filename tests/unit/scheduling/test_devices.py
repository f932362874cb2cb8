import pytest

from hadare.scheduling.devices import canonical_type, load_specs, pmi, relative_speed, spec_of


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Tesla V100-SXM2-16GB", "V100"),
        ("v100", "V100"),
        ("V100 PCIe 16GB", "V100"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Tesla K80", "K80"),
        ("K80 (one of 2 GPUs)", "K80"),
        ("Tesla T4", "T4"),
        ("NVIDIA T400 4GB", "T400"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX-2080-Ti"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("NVIDIA TITAN RTX", "Titan-RTX"),
        ("NVIDIA RTX A2000 12GB", "RTX-A2000"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("cpu", "CPU"),
    ],
)
def test_every_spelling_of_a_type_has_one_name(spelling: str, name: str) -> None:
    assert canonical_type(spelling) == name


@pytest.mark.parametrize("other", ["T4000", "V1000", "A1000"])
def test_a_name_that_only_begins_like_a_known_type_is_another_type(other: str) -> None:
    assert canonical_type(other) == other


def test_an_unknown_name_becomes_a_legal_type_name() -> None:
    assert canonical_type("Foo (Bar) 9000 / with a very long tail behind it") == "Foo-Bar-9000-with-a-very-long-ta"
    assert canonical_type("!!") == "unknown"


def test_canonical_names_are_their_own_canonical_names() -> None:
    assert [canonical_type(name) for name in load_specs()] == list(load_specs())


def test_the_index_is_the_geometric_mean_of_compute_and_bandwidth() -> None:
    assert pmi("V100") == pytest.approx((15.7 * 900) ** 0.5)
    assert relative_speed("V100") == 1.0


def test_the_index_orders_the_types_of_the_published_testbeds() -> None:
    order = sorted(["T4", "K80", "V100", "T400", "P100", "RTX-3090", "CPU"], key=relative_speed, reverse=True)
    assert order == ["RTX-3090", "V100", "P100", "T4", "K80", "T400", "CPU"]


def test_one_die_of_a_k80_is_a_device() -> None:
    assert (spec_of("K80").memory_gb, spec_of("K80").tflops) == (12, 4.37)


def test_an_unknown_type_counts_as_a_t4() -> None:
    assert pmi("Accelerator-X") == pmi("T4")
