"""What is known of the 16-bit products of single chips, beyond what holds for all.

Which tiles a library chooses, and where it splits long sums, differs from chip to chip, so networks
that were fitted to one chip's products make others worse (docs/evidence/devices.md). They are asked
for that chip alone: the device whose products were published, and others that carry the same chip
with other memory, power or clocks.

A network answers with log(real / transferred) after the polynomial that holds for all devices
(:mod:`paceline.kernels.products`). It sees the shape of a product and how its tiles fill the chip,
and no rate: a faster or slower device of the kind gets the same answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paceline.cluster.device import Device
from paceline.cluster.devices import load_device
from paceline.kernels.fitted import ensemble_from_parts, ensembles_to_parts
from paceline.kernels.mlp import Doubles, Ensemble, train_ensemble

CHIPS = ("a100", "h200", "l40s", "b200")
"""The devices whose products are known; see :func:`chip_of`."""
CHIPS_FILE = Path(str(resources.files("paceline.kernels"))) / "transfers" / "chips.safetensors"
_TILES = ((128, 128), (256, 128), (64, 64))
_MOST_LOG = 0.5
_SIMILAR = 1.34  # the same chip with some of its parts off
Shapes = npt.NDArray[np.int64]
"""Rows, columns and depth of products: (products, 3)."""


def chip_of(device: Device) -> str | None:
    """The device with known products that has the same chip; None if there is none."""
    for name in CHIPS:
        own = load_device(name)
        if own.architecture == device.architecture and all(
            1 / _SIMILAR < mine / theirs < _SIMILAR
            for mine, theirs in zip(_size(own), _size(device), strict=True)
        ):
            return name
    return None


def _size(device: Device) -> tuple[float, float, float]:
    """Multiprocessors, cache, and 16-bit FLOP per cycle: GeForce has half the rate of its chip."""
    count, clock_hz = float(device.multiprocessors or math.inf), 1e9 * (device.clock_ghz or 1.0)
    per_cycle = device.flops.get("bf16", 0.0) / clock_hz / count
    return count, float(device.l2_bytes or math.inf), per_cycle or math.inf


def chip_logs(shapes: Shapes, device: Device) -> Doubles:
    """log(real / transferred) of products on a device; 0 where its chip is not known."""
    chip = chip_of(device)
    if chip is None or not len(shapes):
        return np.zeros(len(shapes))
    logs = _ensembles()[chip].predict(chip_features(shapes, device), ["mm"] * len(shapes)).logs
    return np.clip(logs, -_MOST_LOG, _MOST_LOG).astype(np.float64)


def chip_features(shapes: Shapes, device: Device) -> Doubles:
    """What the networks see of each product: its sizes, and how its tiles fill the chip."""
    assert device.multiprocessors
    rows, columns, depth = shapes.T.astype(np.float64)
    found = [np.log2(rows), np.log2(columns), np.log2(depth), (rows % 8 == 0).astype(np.float64)]
    for height, width in _TILES:
        high, wide = np.ceil(rows / height), np.ceil(columns / width)
        waves = high * wide / device.multiprocessors
        found += [
            np.log2(waves),
            np.log2(np.ceil(waves) / waves),
            np.log2(high * height / rows * wide * width / columns),
        ]
    return np.stack(found, -1)


def fit_chip(
    shapes: Shapes,
    logs: Doubles,
    device: Device,
    *,
    num_steps: int = 1000,
) -> Ensemble:
    """Networks for what the polynomial leaves of one chip's products."""
    return train_ensemble(
        chip_features(shapes, device).astype(np.float32),
        ["mm"] * len(shapes),
        logs.astype(np.float32),
        np.ones(len(shapes), np.float32),
        num_steps=num_steps,
        seed=0,
        progress=lambda _: None,
    )


def save_chips(ensembles: Mapping[str, Ensemble], *, source: str) -> None:
    """Write the networks that come with paceline, and what they were fitted to."""
    from safetensors.torch import save_file

    tensors, facts = ensembles_to_parts(ensembles)
    save_file(tensors, CHIPS_FILE, {"source": source, "chips": json.dumps(facts)})


@lru_cache(maxsize=1)
def _ensembles() -> dict[str, Ensemble]:
    from safetensors import safe_open

    with safe_open(CHIPS_FILE, framework="pt") as file:
        facts = json.loads(file.metadata()["chips"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    return {
        name: ensemble_from_parts(name, own, tensors).in_float64() for name, own in facts.items()
    }
