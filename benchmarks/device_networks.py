"""timm's networks as captured steps, for benchmarks/devices.py.

They are built as PyTorch 1.12 ran them: attention as separate products, and SGD with Nesterov's
momentum. timm is no dependency of paceline: without it, these comparisons are left out.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.cluster import Precision
from paceline.steps import Capture, Kernel, Step, capture_step
from paceline.steps.step import MemoryFormat


@dataclass(frozen=True)
class Captured:
    """The kernels of a step, how often each runs, and the calls that start them."""

    kernels: list[Kernel]
    counts: list[int]
    num_calls: int

    @classmethod
    def of(cls, capture: Capture) -> Captured:
        """A whole captured step."""
        counts = Counter(capture.kernels())
        num_calls = sum(1 for call in capture.calls if call.kernels)
        return cls(list(counts), list(counts.values()), num_calls)


def has_timm() -> bool:
    """Whether timm and torchvision can be imported."""
    return all(importlib.util.find_spec(name) is not None for name in ("timm", "torchvision"))


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, without its comments."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def chosen_networks(names: Iterable[str]) -> list[str]:
    """One to three networks of every family, spread over its sizes."""
    families: dict[str, list[str]] = {}
    for name in names:
        match = re.match(r"[a-z]+", name)
        families.setdefault(match[0] if match else name, []).append(name)
    chosen = []
    for _, members in sorted(families.items()):
        count = 1 if len(members) < 4 else 2 if len(members) < 12 else 3
        chosen += [members[int(len(members) / count * (place + 0.5))] for place in range(count)]
    return chosen


def captured(
    name: str,
    *,
    batch: int,
    size: int,
    precision: Precision,
    memory_format: MemoryFormat,
    num_parameters: float | None = None,
    cache: Path | None = None,
    forward_only: bool = False,
) -> Captured | None:
    """The step of one of timm's networks; None where today's timm has another one of that name.

    ``forward_only``: its forward pass, with fused attention, as today's PyTorch runs it.
    """
    part = "forward." if forward_only else ""
    kept = cache and cache / f"{name}.{part}{memory_format}.{precision}.{batch}.json.gz"
    if kept and kept.is_file():
        with gzip.open(kept, "rt", encoding="utf-8") as file:
            content = json.load(file)
    else:
        model = _build(name, fused_attention=forward_only)
        if model is None:
            return None
        content = _capture(name, model, batch, size, precision, memory_format, forward_only)
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with gzip.open(kept, "wt", encoding="utf-8") as file:
                json.dump(content, file)
    if num_parameters is not None and abs(content["parameters"] / num_parameters - 1) > 0.02:
        return None
    return Captured(
        kernels=[Kernel.from_parts(parts) for parts, _ in content["kernels"]],
        counts=[count for _, count in content["kernels"]],
        num_calls=content["calls"],
    )


def _capture(
    name: str,
    model: nn.Module,
    batch: int,
    size: int,
    precision: Precision,
    memory_format: MemoryFormat,
    forward_only: bool,
) -> dict[str, Any]:
    step = Step(
        model=model,
        inputs=torch.empty(batch, 3, size, size, device="meta"),
        targets=torch.empty(batch, dtype=torch.int64, device="meta"),
        loss=_loss,
        optimizer=lambda own: torch.optim.SGD(own, lr=0.1, momentum=0.9, nesterov=True),
        precision=precision,
        memory_format=memory_format,
        name=name,
    )
    capture = capture_step(step)
    calls = [call for call in capture.calls if call.phase == "forward" or not forward_only]
    counts = Counter(kernel for call in calls for kernel in call.kernels)
    return {
        "parameters": capture.num_parameters,
        "calls": sum(1 for call in calls if call.kernels),
        "kernels": [(kernel.to_parts(), count) for kernel, count in counts.items()],
    }


def _loss(output: Any, targets: Tensor) -> Tensor:
    logits = output[0] if isinstance(output, list | tuple) else output
    return functional.cross_entropy(logits, targets)


def _build(name: str, *, fused_attention: bool) -> nn.Module | None:
    define_torchvision_operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import timm
        from timm.layers import set_fused_attn

        set_fused_attn(fused_attention)
        try:
            with torch.device("meta"):
                return timm.create_model(name)  # type: ignore[no-any-return]
        except RuntimeError:  # it was renamed or dropped since
            return None


_operators: list[torch.library.Library] = []


def define_torchvision_operators() -> None:
    """A torchvision that was built for another torch has none, and fails when imported."""
    if not _operators and not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor boxes, Tensor scores, float limit) -> Tensor")  # type: ignore[no-untyped-call]
        _operators.append(library)
