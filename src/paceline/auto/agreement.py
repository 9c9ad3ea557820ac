"""One decision for all workers: the first one plans, the others take it over."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

from paceline.auto.decision import Decision
from paceline.auto.forecast import apart
from paceline.auto.planner import Planner
from paceline.teams import Team


def decided_by_first(
    plan: Callable[[], Decision], planner: Planner, world: Team, *, otherwise: str
) -> Decision | None:
    """The first worker's decision, and all that it stands on, on every worker.

    Floating-point numbers may differ in their last bits between machines, so workers do not plan
    each for itself. All call it at the same step.

    Args:
        plan: Makes the decision; called on the first worker alone.
        planner: What the decision stands on; becomes the first worker's.
        world: All workers.
        otherwise: What goes on if there is no decision, for the message that says so.
    """
    said: dict[str, Any] = {}
    if world.rank == 0:
        try:
            said = {"decision": apart(plan).to_dict(), "planner": planner.state_dict()}
        except Exception as problem:  # the others wait for an answer, whatever happened
            said = {"problem": f"{type(problem).__name__}: {problem}"}
    said = json.loads(world.gather(json.dumps(said).encode() if said else b"")[0])
    if "problem" in said:
        warnings.warn(
            f"auto could not choose and goes on with {otherwise}: {said['problem']}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    if world.rank != 0:
        planner.load_state_dict(said["planner"])
    return Decision.from_dict(said["decision"])
