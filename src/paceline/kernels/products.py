"""What the transfer of 16-bit matrix products leaves: fitted to the products of several GPUs.

Libraries choose tiles, and split long sums, by rules of each generation. A short polynomial of how
the device sees a product (its transferred time, the shares of arithmetic and memory in it, how many
tiles each multiprocessor gets, whether the chip copies tiles by itself as Hopper and Blackwell do)
answers with log(real / transferred). It never sees the device's name; `benchmarks/devices.py`
fits it, and leaves each device out in turn. Networks know more of single chips
(:mod:`paceline.kernels.chip_products`).

Both are asked only for another chip than the measured one: from a chip to itself, or to a faster or
slower one of its kind, kernels stay as they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np

from paceline.cluster.device import Device
from paceline.kernels.chip_products import Shapes, chip_logs
from paceline.kernels.family import family_of
from paceline.kernels.transfer import Array, Reached, Work
from paceline.steps.kernel import Kernel

PRODUCTS_FILE = Path(str(resources.files("paceline.kernels"))) / "transfers" / "products.json"
_COPIES_TILES = ("hopper", "blackwell")  # their tensor memory accelerator
_TILE = 128
_MEAN = np.array([6.0, -3.0, -3.0, 0.0, 0.5])
_SCALE = np.array([3.0, 2.0, 2.0, 4.0, 0.5])
_LOW, _HIGH = -12.0, 16.0
_MOST_PRODUCT = 6.0
_MOST_LOG = 0.6
_PULL = 0.3
_ROUNDS = 6


def is_product(kernel: Kernel) -> bool:
    """Whether a kernel is a product of two matrices in 16 bits; batches of them were not seen."""
    if family_of(kernel) != "matmul" or len(kernel.operands) < 2:
        return False
    left, right = kernel.operands[-2:]
    return left.dtype in ("bf16", "f16") and len(left.shape) == len(right.shape) == 2


def corrected_s(
    kernels: Sequence[Kernel], seconds: Array, work: Work, wanted: Reached, device: Device
) -> Array:
    """Transferred times with what is known of products; other kernels' stay as they are."""
    rows = [row for row, kernel in enumerate(kernels) if is_product(kernel)]
    if not rows:
        return seconds
    seen = product_features(kernels, seconds, work, wanted, device)[..., rows, :]
    logs = predicted_logs(_coefficients(), seen)
    logs = logs + chip_logs(product_shapes([kernels[row] for row in rows]), device)
    found = np.array(seconds)
    found[..., rows] *= np.exp(logs)
    return found


def product_shapes(products: Sequence[Kernel]) -> Shapes:
    """Rows, columns and depth of each product."""
    sizes = [
        (left.shape[0], right.shape[1], left.shape[1])
        for left, right in (each.operands[-2:] for each in products)
    ]
    return np.maximum(np.array(sizes, dtype=np.int64).reshape(-1, 3), 1)


def product_features(
    kernels: Sequence[Kernel], seconds: Array, work: Work, wanted: Reached, device: Device
) -> Array:
    """What the polynomial sees of each kernel, along the last axis."""
    tiles = np.array([_tiles(kernel) for kernel in kernels], dtype=np.float64)
    found = [
        np.log2(1e6 * seconds),
        np.log2(work.flop / wanted.flops / seconds),
        np.log2(work.num_bytes / wanted.bytes_per_s / seconds),
        np.log2(tiles / wanted.multiprocessors),
        np.array(float(device.architecture in _COPIES_TILES)),
    ]
    shape = np.broadcast_shapes(*(each.shape for each in found))
    return np.stack([np.broadcast_to(each, shape) for each in found], -1)


def predicted_logs(coefficients: Array, features: Array) -> Array:
    """log(real / transferred) by the polynomial."""
    return np.asarray(np.clip(_terms(features) @ coefficients, -_MOST_LOG, _MOST_LOG))


def fit_products(features: Sequence[Array], logs: Sequence[Array]) -> Array:
    """The coefficients that fit log(real / transferred) of several devices, all counted alike.

    Ridge regression, reweighted so that the mean error counts rather than the mean square.
    """
    matrix = np.concatenate([_terms(one) / math.sqrt(len(one)) for one in features])
    wanted = np.concatenate([one / math.sqrt(len(one)) for one in logs])
    sizes = np.concatenate([np.full(len(one), math.sqrt(len(one))) for one in logs])
    weights, found = np.ones(len(wanted)), np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        weighted = (matrix * weights[:, None]).T
        found = np.linalg.solve(weighted @ matrix + _PULL * np.eye(len(found)), weighted @ wanted)
        weights = 0.1 / np.maximum(np.abs(matrix @ found - wanted) * sizes, 0.05)
    return found


def save_products(coefficients: Array, *, source: str) -> None:
    """Write the coefficients that come with paceline, and what they were fitted to."""
    PRODUCTS_FILE.parent.mkdir(exist_ok=True)
    content = {"source": source, "coefficients": [round(float(one), 5) for one in coefficients]}
    PRODUCTS_FILE.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


@lru_cache(maxsize=1)
def _coefficients() -> Array:
    return np.array(json.loads(PRODUCTS_FILE.read_text("utf-8"))["coefficients"])


def _terms(features: Array) -> Array:
    scaled = (np.clip(features, _LOW, _HIGH) - _MEAN) / _SCALE
    columns = [np.ones(scaled.shape[:-1]), *np.moveaxis(scaled, -1, 0)]
    pairs = combinations_with_replacement(range(len(_MEAN)), 2)
    columns += [
        np.clip(scaled[..., one] * scaled[..., other], -_MOST_PRODUCT, _MOST_PRODUCT)
        for one, other in pairs
    ]
    return np.stack(columns, -1)


def _tiles(kernel: Kernel) -> int:
    if not is_product(kernel):
        return 1
    left, right = kernel.operands[-2:]
    return max(math.ceil(left.shape[0] / _TILE) * math.ceil(right.shape[1] / _TILE), 1)
