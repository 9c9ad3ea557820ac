"""Exchange of buffers: batch norm's statistics, and whatever a model keeps besides parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from paceline.strategies.equality import take_over
from paceline.strategies.layout import FlatLayout
from paceline.strategies.replica import Replica
from paceline.teams import Pending, Team


def start_buffers(replica: Replica, team: Team) -> list[tuple[Pending, Callable[[], None]]]:
    """Begin to make the floating-point buffers of a team's members equal.

    Each result is there when its pending is done; it must then be unpacked by the function.
    """
    started: list[tuple[Pending, Callable[[], None]]] = []
    for layout in replica.buffer_layouts():
        flat = layout.pack()
        if replica.buffer_mode != "mean":
            started.append((team.broadcast(flat, 0), partial(layout.unpack, flat)))
        elif replica.weight is None:
            started.append((team.all_reduce(flat, "mean"), partial(layout.unpack, flat)))
        else:
            weighted = _weighted(flat, replica.weight)
            unpack = partial(_unpack_weighted, layout, weighted)
            started.append((team.all_reduce(weighted, "mean"), unpack))
    return started


def _weighted(flat: torch.Tensor, weight: float) -> torch.Tensor:
    """Values times their weight; the weight behind them."""
    own = torch.cat([flat, flat.new_ones(1)])
    return own.mul_(weight) if weight else own.zero_()


def _unpack_weighted(layout: FlatLayout, summed: torch.Tensor) -> None:
    layout.unpack(summed[:-1] / summed[-1])


def contribution(
    flat: torch.Tensor, *, is_heard: bool, weight: float | torch.Tensor = 1
) -> torch.Tensor:
    """Buffers for a sum; behind them, the weight of each value that is in the sum, else 0.

    Values that are not finite are not in it: they are broken, or the -inf of a mask.
    """
    counts = flat.isfinite() & is_heard
    summands = torch.cat([flat.where(counts, torch.zeros_like(flat)), counts.to(flat.dtype)])
    return summands if isinstance(weight, int) and weight == 1 else summands.mul_(weight)


def mean_of_contributions(summed: torch.Tensor) -> torch.Tensor:
    """The average of what is in the sum; NaN where nothing is."""
    values, counts = summed.chunk(2)
    return values / counts


def replace_buffers(layout: FlatLayout, mean: torch.Tensor) -> None:
    """Set the buffers to the average, where there is one."""
    layout.unpack(torch.where(mean.isfinite(), mean, layout.pack()))


def merge_buffers(layout: FlatLayout, mean: torch.Tensor, sent: torch.Tensor) -> None:
    """Merge an average that is some steps old, keeping the change since then.

    Batch norm's statistics move a tenth of the way at each step: without this they would be set
    back by every late exchange, and never arrive.
    """
    now = layout.pack()
    new = mean + (now - sent)
    # A variance must stay one: where the sum falls below zero, the smaller of the two will do.
    has_crossed_zero = (new * mean < 0) & (now * mean > 0)
    new = torch.where(has_crossed_zero, torch.where(now.abs() < mean.abs(), now, mean), new)
    # What is broken here only is healed by the mean, without its change.
    replace_buffers(layout, torch.where(new.isfinite(), new, mean))


def settle_buffers(replica: Replica, team: Team) -> None:
    """Make all buffers of a team's members equal: counters too, which no average can."""
    if replica.buffer_mode == "keep" or team.size == 1:
        return
    for layout in replica.buffer_layouts():
        is_heard = replica.buffer_mode == "mean" or team.rank == 0
        summed = contribution(layout.pack(), is_heard=is_heard)
        team.all_reduce(summed, "sum").wait()
        replace_buffers(layout, mean_of_contributions(summed))
    take_over(replica.other_buffers(), team, 0)
