"""The states of the random number generators of one worker."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_states(device: torch.device) -> dict[str, Any]:
    """Of Python, NumPy, torch, and torch on the model's GPU."""
    version, words, gauss = random.getstate()
    state: tuple[Any, ...] = tuple(np.random.get_state(legacy=True))
    name, keys, place, has_gauss, cached = state
    states = {
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "numpy": [str(name), torch.tensor(keys.astype(np.int64)), place, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        # On the CPU, as torch returns it and wants it back.
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Go on where :func:`random_states` found the generators."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, keys, place, has_gauss, cached = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), place, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def seed_anew(states: Mapping[str, Any], rank: int) -> None:
    """Begin new sequences, different on every worker, that follow from the saved ones."""
    digest = hashlib.blake2b(states["torch"].numpy().tobytes() + f"/{rank}".encode(), digest_size=8)
    seed = int.from_bytes(digest.digest()[:7])
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
