from __future__ import annotations

import re
import subprocess
import sys

import pytest

from paceline.cluster import (
    Precision,
    device_names,
    dump_cluster,
    load_cluster,
    load_device,
    parse_cluster,
    preset_names,
)

EXPECTED = {
    "aws-g5",
    "aws-g6e",
    "aws-p3-16xlarge",
    "aws-p4d",
    "aws-p4de",
    "aws-p5",
    "aws-p5e",
    "aws-p5en",
    "aws-p6-b200",
    "aws-p6-b300",
    "azure-nd-a100-v4",
    "azure-nd-h100-v5",
    "dgx-a100",
    "dgx-b200",
    "dgx-h100",
    "dgx-h200",
    "dgx1-v100",
    "ethernet-100g",
    "ethernet-10g",
    "ethernet-1g",
    "ethernet-25g",
    "gcp-a2",
    "gcp-a3-high",
    "gcp-a3-mega",
    "gcp-a3-ultra",
    "gcp-a4",
    "lab-2x2",
    "lambda-b200",
    "lambda-h100",
    "local",
    "mixed",
    "oci-a100",
    "oci-b200",
    "oci-h100",
    "workstation-2x3090",
    "workstation-4x4090",
}


def test_the_presets_are_there() -> None:
    assert set(preset_names()) == EXPECTED
    assert list(preset_names()) == sorted(preset_names())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_preset_has_its_name_and_a_source_for_every_figure(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.description
    for node in cluster.node_kinds:
        assert node.source
        assert node.inside.source
        assert node.between.source
        assert node.device.source
        # A price has a date; where there is none, the source says so.
        if node.price_per_hour is None:
            assert "price" in node.source or "two workers" in node.source or name == "lab-2x2"
        else:
            assert re.search(r"\b20[12]\d\b", node.source)
        if node.device.name == "cpu-core":
            assert "nominal" in node.device.source
            assert "nominal" in node.inside.source
    assert parse_cluster(dump_cluster(cluster), "again") == cluster


@pytest.mark.parametrize("name", device_names())
def test_a_device_has_a_source_and_lower_precision_is_not_slower(name: str) -> None:
    flops = load_device(name).flops
    assert load_device(name).source
    ordered = [flops[precision] for precision in ("fp32", "tf32", "bf16") if precision in flops]
    assert ordered == sorted(ordered)
    if "bf16" in flops:
        assert flops["bf16"] == flops["fp16"]


def test_an_unknown_device_is_answered_with_the_closest() -> None:
    with pytest.raises(ValueError, match="no device 'h10': did you mean 'h100'"):
        load_device("h10")


@pytest.mark.parametrize(
    ("name", "cores", "flop_per_core_and_cycle", "clock_hz"),
    [
        # Cores and boost clocks from the makers' whitepapers; a multiply-add is two FLOP.
        ("v100", 5120, 2, 1.530e9),
        ("a100", 6912, 2, 1.410e9),
        ("h100", 16896, 2, 1.980e9),
        ("rtx3090", 10496, 2, 1.695e9),
        ("rtx4090", 16384, 2, 2.520e9),
        ("t4", 2560, 2, 1.590e9),
        ("l4", 7424, 2, 2.040e9),
        ("cpu-core", 16, 2, 3.0e9),
    ],
)
def test_fp32_speed_is_cores_times_clock(
    name: str, cores: int, flop_per_core_and_cycle: int, clock_hz: float
) -> None:
    peak = cores * flop_per_core_and_cycle * clock_hz
    assert load_device(name).flops["fp32"] == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize(
    ("name", "precision", "tensor_cores", "fma_per_core_and_cycle", "clock_hz"),
    [
        # Dense multiply-adds of one tensor core in one cycle, from the same whitepapers.
        ("v100", "fp16", 640, 64, 1.530e9),
        ("t4", "fp16", 320, 64, 1.590e9),
        ("a100", "fp16", 432, 256, 1.410e9),
        ("a100", "tf32", 432, 128, 1.410e9),
        ("h100", "bf16", 528, 512, 1.830e9),
        ("h200", "tf32", 528, 256, 1.830e9),
        ("rtx3090", "fp16", 328, 64, 1.695e9),
        ("rtx4090", "fp16", 512, 64, 2.520e9),
        ("l4", "fp16", 232, 128, 2.040e9),
    ],
)
def test_tensor_speed_is_dense_and_accumulates_in_fp32(
    name: str, precision: Precision, tensor_cores: int, fma_per_core_and_cycle: int, clock_hz: float
) -> None:
    peak = 2 * tensor_cores * fma_per_core_and_cycle * clock_hz
    assert load_device(name).flops[precision] == pytest.approx(peak, rel=0.01)


def test_volta_and_turing_have_neither_tf32_nor_bf16() -> None:
    for name in ("v100", "v100-32gb", "t4"):
        assert set(load_device(name).flops) == {"fp32", "fp16"}


@pytest.mark.parametrize(
    ("name", "num_nvlinks", "num_cards", "card_gbit_per_s"),
    [
        ("dgx1-v100", 6, 4, 100),
        ("dgx-a100", 12, 8, 200),
        ("dgx-h100", 18, 8, 400),
        ("dgx-h200", 18, 8, 400),
        ("aws-p4d", 12, 4, 100),
        ("aws-p5", 18, 32, 100),
        ("gcp-a3-high", 18, 4, 200),
        ("gcp-a3-mega", 18, 8, 200),
        ("aws-p4de", 12, 4, 100),
        ("azure-nd-a100-v4", 12, 8, 200),
        ("oci-h100", 18, 16, 200),
    ],
)
def test_links_add_up_from_their_lanes_and_cards(
    name: str, num_nvlinks: int, num_cards: int, card_gbit_per_s: int
) -> None:
    (node,) = load_cluster(name).node_kinds
    # One NVLink of generations 2 to 4 carries 25 GB/s each way.
    assert node.inside.bandwidth_bytes_per_s == num_nvlinks * 25e9
    assert not node.inside.shared
    assert node.between.bandwidth_bytes_per_s == num_cards * card_gbit_per_s * 1e9 / 8
    assert node.between.shared


def test_prices_of_clouds() -> None:
    assert load_cluster("aws-p3-16xlarge").with_nodes(2).price_per_hour == pytest.approx(48.96)
    assert load_cluster("aws-p4d").with_nodes(1).price_per_hour == pytest.approx(21.957642)
    assert load_cluster("aws-p5").with_nodes(1).price_per_hour == pytest.approx(55.04)
    assert load_cluster("gcp-a3").with_nodes(1).price_per_hour == pytest.approx(88.49)
    assert load_cluster("aws-p6-b200").with_nodes(1).price_per_hour == pytest.approx(113.9328)
    assert load_cluster("dgx-h200").price_per_hour is None


def test_the_lab_and_the_mixed_cluster() -> None:
    lab = load_cluster("lab-2x2")
    assert lab.workers_per_node == (2, 2)
    assert lab.node_kinds[0].between.bandwidth_bytes_per_s == 12.5e6
    assert lab.node_kinds[0].between.shared
    mixed = load_cluster("mixed")
    assert mixed.workers_per_node == (4, 1, 1)
    assert not mixed.is_uniform
    assert len({node.between.bandwidth_bytes_per_s for node in mixed.node_kinds}) == 2


def test_clusters_need_neither_torch_nor_a_terminal() -> None:
    code = (
        "import sys, paceline.cluster\n"
        "print([name for name in ('torch', 'typer', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
