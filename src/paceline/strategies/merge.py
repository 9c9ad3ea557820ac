"""How a worker merges the nodes' average, which is some steps old when it arrives."""

from __future__ import annotations

from typing import Literal

import torch

from paceline.strategies.layout import FlatLayout

MergeName = Literal["mean", "stale", "corrected", "lerp"]


def share_kept(name: MergeName, *, steps_passed: int, num_nodes: int, keep: float) -> float:
    """The share of its own parameters that a worker keeps in a merge."""
    if name == "stale":
        return 2.0 * steps_passed / (2.0 * steps_passed + num_nodes)
    return keep if name == "lerp" else 0.0


@torch.no_grad()
def merge(
    name: MergeName,
    layout: FlatLayout,
    *,
    mean: torch.Tensor,
    sent: torch.Tensor,
    steps_passed: int,
    kept: float,
) -> None:
    """Change the layout's parameters, in place.

    ``mean`` is the average of what the nodes sent ``steps_passed`` steps ago, ``sent`` what this
    node sent. ``mean`` may be overwritten.

    - ``mean``: x ← mean. Steps taken while waiting are lost.
    - ``stale``: x ← (2W·x + P·mean) / (2W + P), for P nodes and W steps (Coquelin et al. 2021,
      equation 1, whose Σ sent is P·mean). The longer it took, the less it counts.
    - ``corrected``: x ← mean + (x - sent). Steps taken while waiting are kept in full.
    - ``lerp``: x ← keep·x + (1 - keep)·mean (Douillard et al. 2025, "Streaming DiLoCo").

    A result that is not old replaces the parameters under ``stale`` and ``corrected``: that is
    their formulas' value, and exact, so that all workers end equal to the bit.
    """
    if name == "corrected" and steps_passed > 0:
        change = layout.views(mean.sub_(sent))
        torch._foreach_add_(layout.tensors, _in_own_types(layout, change))
    elif kept > 0.0:
        ends = _in_own_types(layout, layout.views(mean))
        torch._foreach_lerp_(layout.tensors, ends, 1.0 - kept)
    else:
        layout.unpack(mean)


def _in_own_types(layout: FlatLayout, views: list[torch.Tensor]) -> list[torch.Tensor]:
    return [view.to(tensor.dtype) for view, tensor in zip(views, layout.tensors, strict=True)]
