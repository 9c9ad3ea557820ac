"""Kernels on devices that were not measured: physics, the study's axes, published products."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from paceline.cluster import load_device
from paceline.kernels import KernelModel, load_kernel_model
from paceline.kernels.transfer import reached, transferred_s, work_of
from paceline.steps import Kernel, Operand, capture_step, zoo_step

PRODUCTS = Path(__file__).parents[2] / "benchmarks" / "data" / "gemm_bf16.csv.gz"
SQUARES = Path(__file__).parents[2] / "benchmarks" / "data" / "square_products.csv"


def linear(m: int, n: int, k: int) -> Kernel:
    left, right = Operand("bf16", (m, k)), Operand("bf16", (k, n), (1, k))
    return Kernel("mm", (left, right), "", (Operand("bf16", (m, n)),))


def relu(numel: int) -> Kernel:
    return Kernel("relu", (Operand("f32", (numel,)),), "", (Operand("f32", (numel,)),))


def norm(channels: int) -> Kernel:
    image, each = Operand("f32", (64, channels, 32, 32)), Operand("f32", (channels,))
    return Kernel("batch_norm", (image, each, each, each, each, True), "", (image,))


def carried(kernel: Kernel, seconds: float, device: str) -> float:
    """A kernel of an H200 on another device, without what is fitted to products."""
    work = work_of([kernel])
    old, new = (reached(load_device(name), work) for name in ("h200", device))
    return float(transferred_s(np.array([seconds]), work, old, new)[0])


def test_from_a_device_to_itself_nothing_changes() -> None:
    for kernel, seconds in ((linear(4096, 4096, 4096), 2e-4), (relu(1 << 26), 1.3e-4)):
        assert carried(kernel, seconds, "h200") == pytest.approx(seconds, rel=1e-12)


def test_large_kernels_follow_what_limits_them_and_small_ones_the_clock() -> None:
    new, old = load_device("a100"), load_device("h200")
    assert new.products_share
    assert old.products_share
    copy_s = carried(relu(1 << 28), 2**31 / (0.85 * 4.8e12) + 2e-6, "a100")
    assert copy_s == pytest.approx(2**31 / (0.85 * 2.039e12), rel=0.02)
    flop = 2 * 8192.0**3
    product_s = carried(linear(8192, 8192, 8192), flop / (0.88 * 989.4e12) + 2e-6, "a100")
    assert product_s == pytest.approx(flop / (new.products_share * 312e12), rel=0.02)
    # Eight channels are eight blocks: more multiprocessors would not help.
    few_s, many_s = (carried(norm(count), 1e-3, "rtx3090") for count in (8, 1024))
    assert few_s < 1.3e-3 < many_s


def test_what_fits_the_cache_is_read_from_it() -> None:
    small, large = 1 << 22, 1 << 28
    seconds = {
        count: carried(relu(count), 2e-6 + 8 * count / (0.85 * 4.8e12), "l40s")
        for count in (small, large)
    }
    assert seconds[large] / seconds[small] > 3 * large / small / 1.5


def test_an_axis_and_a_device_with_such_figures_give_the_same_numbers() -> None:
    kernels = list(capture_step(zoo_step("vit-b16", batch=8, precision="bf16")).kernels())
    kernels += capture_step(zoo_step("resnet18", batch=8, memory_format="channels_last")).kernels()
    arithmetic, memory = np.array([1.0, 2.0, 0.5, 3.0]), np.array([2.0, 1.0, 0.7, 3.0])
    for name in ("h200", "a100"):
        model = load_kernel_model(name)
        by_axis = model.seconds(kernels, arithmetic=arithmetic, memory=memory)
        for row, (faster, wider) in zip(by_axis, zip(arithmetic, memory, strict=True), strict=True):
            device = model.device.scaled(arithmetic=float(faster), memory=float(wider))
            other = KernelModel(device, model.fitted, model.table)
            assert other.seconds(kernels) == pytest.approx(row, rel=1e-9)
        assert (by_axis[3] < by_axis[0]).all()


def test_grouped_convolutions_in_channels_last_are_slow_where_they_were_found_to_be() -> None:
    strides = (256 * 28 * 28, 1, 256 * 28, 256)
    image = Operand("f16", (64, 256, 28, 28), strides)
    settings = ((1, 1), (1, 1), (1, 1), False, (0, 0))
    grouped, plain = (
        Kernel("convolution", (image, weight, None, *settings, groups), "", (image,))
        for weight, groups in (
            (Operand("f16", (256, 16, 3, 3), (144, 1, 48, 16)), 16),
            (Operand("f16", (256, 256, 3, 3), (2304, 1, 768, 256)), 1),
        )
    )
    found = load_kernel_model("rtx3090").estimate([grouped, plain])
    assert found[0].seconds > 2 * 64 * 784 * 256 * 144 / (0.1 * 35.6e12)
    assert found[0].uncertainty > 2 * found[1].uncertainty


@pytest.mark.parametrize("system", ["a100_sxm", "l40s", "b200_sxm"])
def test_published_products(system: str) -> None:
    with gzip.open(PRODUCTS, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        own = [row for row in rows if row["system"] == system][::8]
    kernels = [linear(*(int(row[size]) for size in "mnk")) for row in own]
    real = np.array([1e-3 * float(row["latency_ms"]) for row in own])
    found = load_kernel_model(system.removesuffix("_sxm")).seconds(kernels)
    error, is_long = np.abs(found / real - 1), real > 50e-6
    assert error.mean() < 0.12
    assert error[is_long].mean() < 0.08
    assert 0.95 < np.median(found / real) < 1.05


def test_no_product_is_faster_than_what_the_device_reaches() -> None:
    """By itself, the network promises more than the peak for products larger than it has seen."""
    model = load_kernel_model("h200")
    sizes = [(16384, 5120, 5120), (32768, 8192, 8192), (8192, 65536, 4096)]
    found = model.seconds([linear(*each) for each in sizes])
    reached = [2 * np.prod([float(side) for side in each]) / 989.4e12 for each in sizes]
    assert (found >= np.array(reached) / 0.8 * (1 - 1e-9)).all()


@pytest.mark.parametrize(
    "device", ["l40s", "rtx3090", "rtx4090", "rtx5090", "a10g", "h100", "a100"]
)
def test_large_products_in_fp32_are_as_fast_as_users_measured(device: str) -> None:
    """Without tensor cores, chips with twice the units per multiprocessor reach half to 0.8."""
    with SQUARES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    measured = [
        float(row["tflops"])
        for row in rows
        if (row["device"], row["precision"]) == (device, "fp32") and row["size"] in ("0", "8192")
    ]
    side = Operand("f32", (8192, 8192))
    (seconds,) = load_kernel_model(device).seconds([Kernel("mm", (side, side), "", (side,))])
    assert 2e-12 * 8192**3 / seconds == pytest.approx(measured[0], rel=0.1)
