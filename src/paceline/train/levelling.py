"""Give workers equal models and optimizers where a loop has left them different."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch.optim import Optimizer

from paceline.strategies import Replica
from paceline.strategies.equality import find_unequal, make_equal, take_over
from paceline.teams import Team
from paceline.train import optimizer_state as states


def level_models(replica: Replica, world: Team) -> None:
    """Make parameters and buffers equal: a loop may have changed them, and no worker is right."""
    tensors = replica.tensors()
    unequal = find_unequal(tensors, world)
    if not unequal:
        return
    make_equal({name: tensors[name] for name in unequal}, world)
    more = f" and {len(unequal) - 1} more" if len(unequal) > 1 else ""
    warnings.warn(
        f"workers differed in {unequal[0]}{more} at the end and were given their average; usual "
        "reasons: parameters changed outside optimizer.step(), workers with different learning "
        "rates or optimizer states, dropout or data that an optimizer's closure uses",
        RuntimeWarning,
        stacklevel=3,
    )


def level_optimizers(optimizers: Sequence[Optimizer], world: Team) -> None:
    """Make optimizers equal: with different states, workers would drift apart again."""
    if states.is_equal(optimizers, world):
        return
    states.take_over(optimizers, world, 0)
    warnings.warn(
        "the workers' optimizers had different states (as nodes have after training on their own) "
        "and were given the first worker's; finish(optimizer_state=True) averages them",
        RuntimeWarning,
        stacklevel=4,
    )


def level_after_join(
    replica: Replica, optimizers: Sequence[Optimizer], team: Team, source: int
) -> None:
    """Give a team's members what one of them has, which had data the longest."""
    take_over(replica.tensors().values(), team, source)
    if states.have_same_settings(optimizers, team):
        if not states.is_equal(optimizers, team):
            states.take_over(optimizers, team, source)
        return
    warnings.warn(
        "workers that ran out of batches were given the others' learning rate; a scheduler that "
        "is stepped once per batch falls behind there, so step it once per epoch",
        RuntimeWarning,
        stacklevel=5,
    )
    states.take_over(optimizers, team, source, with_settings=True)
