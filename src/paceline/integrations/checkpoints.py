"""A strategy's state beside another library's checkpoint.

Libraries write one model and one optimizer: the first worker's. That is all there is while workers
are equal. Otherwise every worker's own go to a folder of paceline's beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.train import CheckpointError, Pace


def save_beside(pace: Pace, folder: Path) -> dict[str, Any]:
    """What the library's checkpoint is to hold; where workers differ, ``folder`` is written too.

    All workers call it between steps.
    """
    note: dict[str, Any] = {
        "strategy": type(pace.strategy).__name__,
        "step": pace.strategy.step,
        "state": None,
    }
    if are_equal(pace):
        note["state"] = pace.state_dict()
    else:
        pace.save(folder)
    return note


def load_beside(pace: Pace, folder: Path, note: dict[str, Any]) -> None:
    """Go on where the checkpoint was saved. The library has loaded its own part of it already."""
    if note["state"] is not None:
        pace.load_state_dict(note["state"])
        return
    own = type(pace.strategy).__name__
    if note["strategy"] != own:
        raise CheckpointError(f"the checkpoint holds {note['strategy']}, and {own} is attached")
    pace.load(folder)
    if pace.strategy.step != note["step"]:
        raise CheckpointError(
            f"{folder} was saved at step {pace.strategy.step}, and the checkpoint beside it at "
            f"step {note['step']}; resume from another checkpoint"
        )


def are_equal(pace: Pace) -> bool:
    """Whether the first worker's model and optimizer are everybody's."""
    strategy = pace.strategy
    return strategy.lockstep() is pace.workers.world and strategy.replica.buffer_mode != "keep"


def folder_beside(path: Any) -> Path:
    """Where every worker's own state of a checkpoint file is."""
    if "://" in str(path):
        raise ValueError(
            f"{path} is not on a file system, where each worker could write its state; save to a "
            "folder that is"
        )
    return Path(f"{path}.paceline")
