"""Published bf16 products of several devices, and what is fitted to them (devices.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from device_networks import read_table
from device_rules import RULES, Array
from paceline.cluster import Device, load_device
from paceline.kernels import load_kernel_model
from paceline.kernels.chip_products import chip_features, fit_chip, save_chips
from paceline.kernels.products import (
    fit_products,
    predicted_logs,
    product_features,
    product_shapes,
    save_products,
)
from paceline.kernels.transfer import reached, work_of
from paceline.steps import Kernel
from paceline.steps.kernel import Operand

TABLE = Path(__file__).parent / "data" / "gemm_bf16.csv.gz"
SOURCE = (
    "bf16 products on A100, H200, L40S and B200: ai-dynamo/aiconfigurator at 095f58a (Apache-2.0)"
)
SYSTEMS = {"a100_sxm": "a100", "h200_sxm": "h200", "l40s": "l40s", "b200_sxm": "b200"}
MEASURED, CARRIED = "h200", "a100"
NUM_PARTS = 5
SQUARES = Path(__file__).parent / "data" / "square_products.csv"
SQUARE_SIDES = (2048, 4096, 8192, 10240)
"""Smaller ones were limited by the host that timed them."""
DTYPES = {"fp32": "f32", "tf32": "f32", "bf16": "bf16", "fp16": "f16"}


@dataclass(frozen=True)
class KnownProducts:
    """One device's published products, and what the transfer says of them.

    The H200 of this table ran hot, for longer than paceline's own profile: it is taken for another
    device, which reaches what the H200 sustains.
    """

    device: Device
    kernels: list[Kernel]
    real_s: Array
    by_rule: dict[str, Array]

    @classmethod
    def of(cls, rows: Sequence[dict[str, str]], name: str) -> KnownProducts:
        """The rows of one system."""
        old, new = load_device(MEASURED), load_device(name)
        if name == MEASURED:
            assert new.sustained_share
            new = new.replace(products_share=new.sustained_share)
        kernels = [product(*(int(row[size]) for size in "mnk")) for row in rows]
        measured_s = load_kernel_model(CARRIED).seconds_where_measured(kernels)
        by_rule = {rule: move(kernels, measured_s, old, new) for rule, move in RULES.items()}
        real_s = np.array([1e-3 * float(row["latency_ms"]) for row in rows])
        return cls(new, kernels, real_s, by_rule)

    @cached_property
    def parts_s(self) -> Array:
        return self.by_rule["by parts"]

    @cached_property
    def features(self) -> Array:
        work = work_of(self.kernels)
        return product_features(
            self.kernels, self.parts_s, work, reached(self.device, work), self.device
        )

    @cached_property
    def logs(self) -> Array:
        return np.asarray(np.log(self.real_s / self.parts_s))

    def left(self, coefficients: Array) -> Array:
        """log(real / predicted) after the polynomial."""
        return np.asarray(self.logs - predicted_logs(coefficients, self.features))


def known_products() -> dict[str, KnownProducts]:
    """The table's products, by device."""
    rows = read_table(TABLE)
    return {
        name: KnownProducts.of([row for row in rows if row["system"] == system], name)
        for system, name in SYSTEMS.items()
    }


def save_fit(known: Mapping[str, KnownProducts], polynomial: Array) -> None:
    """Write what comes with paceline: the polynomial, and networks fitted to all products."""
    save_products(polynomial, source=SOURCE)
    networks = {
        name: fit_chip(product_shapes(own.kernels), own.left(polynomial), own.device)
        for name, own in known.items()
    }
    save_chips(networks, source=SOURCE)


def fitted_polynomial(devices: Sequence[KnownProducts]) -> Array:
    """Fitted to the products of some devices."""
    return fit_products([each.features for each in devices], [each.logs for each in devices])


def left_by_networks(own: KnownProducts, left: Array) -> Array:
    """log(real / predicted) after networks too, each product by ones that have not seen it."""
    shapes = product_shapes(own.kernels)
    part = np.random.default_rng(0).integers(NUM_PARTS, size=len(shapes))
    found = np.array(left)
    for each in range(NUM_PARTS):
        seen, unseen = part != each, part == each
        networks = fit_chip(shapes[seen], left[seen], own.device)
        features = chip_features(shapes[unseen], own.device)
        found[unseen] -= networks.in_float64().predict(features, ["mm"] * len(features))[0]
    return found


def product(m: int, n: int, k: int) -> Kernel:
    """A linear layer without a bias: (m, k) times (k, n), the weight lying as (n, k)."""
    left, right = Operand("bf16", (m, k)), Operand("bf16", (k, n), (1, k))
    return Kernel("mm", (left, right), "", (Operand("bf16", (m, n)),))


def square_tflops() -> list[tuple[str, str, float, float]]:
    """Device, precision, predicted and published TFLOP/s of products of square matrices."""
    found = []
    for row in read_table(SQUARES):
        side, precision = int(row["size"]), row["precision"]
        if side and side not in SQUARE_SIDES:
            continue
        sides = [side] if side else SQUARE_SIDES  # 0: the best of all
        model = load_kernel_model(row["device"])
        seconds = model.seconds([_square(each, precision) for each in sides])
        best = max(2e-12 * each**3 / took for each, took in zip(sides, seconds, strict=True))
        found.append((row["device"], precision, best, float(row["tflops"])))
    return found


def _square(side: int, precision: str) -> Kernel:
    matrix = Operand(DTYPES[precision], (side, side))
    return Kernel("mm", (matrix, matrix), "tf32" if precision == "tf32" else "", (matrix,))
