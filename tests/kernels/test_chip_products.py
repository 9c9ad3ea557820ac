"""What is known of single chips' products: for whom it counts, and what it may see."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.cluster import load_device
from paceline.kernels.chip_products import chip_features, chip_logs, chip_of, fit_chip

SHAPES = np.array([[2048, 2048, 512], [4096, 768, 768], [1, 4096, 4096], [8192, 5120, 8192]])


@pytest.mark.parametrize(
    ("device", "chip"),
    [
        ("a100", "a100"),
        ("a100-40gb", "a100"),
        ("a100-pcie", "a100"),
        ("h100", "h200"),
        ("h100-pcie", "h200"),
        ("gh200", "h200"),
        ("b300", "b200"),
        ("gb200", "b200"),
        ("l40s", "l40s"),
        ("rtx4090", None),  # the chip of the L40S, with half of its rate
        ("l4", None),  # of the same generation, and less than half as large
        ("rtx3090", None),  # of the A100's generation, and another chip
        ("v100", None),
        ("rtx5090", None),
        ("mi300x", None),
        ("cpu-core", None),
    ],
)
def test_networks_count_for_the_same_chip_alone(device: str, chip: str | None) -> None:
    found = load_device(device)
    assert chip_of(found) == chip
    assert np.any(chip_logs(SHAPES, found)) == (chip is not None)


def test_a_faster_device_of_the_kind_gets_the_same_answer() -> None:
    device = load_device("a100")
    faster = device.scaled(arithmetic=2.0, memory=3.0)
    assert (chip_logs(SHAPES, device) == chip_logs(SHAPES, faster)).all()


def test_an_answer_does_not_depend_on_what_else_is_asked() -> None:
    device = load_device("l40s")
    alone = [chip_logs(SHAPES[row : row + 1], device)[0] for row in range(len(SHAPES))]
    assert chip_logs(SHAPES, device) == pytest.approx(alone, rel=1e-12)
    assert len(chip_logs(SHAPES[:0], device)) == 0


def test_networks_learn_what_a_shape_costs() -> None:
    """A made-up chip that is slow for few rows: found again on products that it has not seen."""
    generator = np.random.default_rng(0)
    shapes = 2 ** generator.integers(5, 14, size=(1200, 3))
    logs = np.where(shapes[:, 0] < 256, 0.3, -0.1)
    device = load_device("a100")
    networks = fit_chip(shapes[:800], logs[:800], device, num_steps=100).in_float64()
    found = networks.predict(chip_features(shapes[800:], device), ["mm"] * 400)
    assert np.abs(found.logs - logs[800:]).mean() < 0.03
