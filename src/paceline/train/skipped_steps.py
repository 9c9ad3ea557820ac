"""Steps that a loop leaves out because the gradients were not finite: they count as steps.

A step counts on all nodes or on none. A ``GradScaler`` is watched by
:mod:`paceline.train.optimizer_steps`; here a loop is seen that looks at the gradients by itself.
"""

from __future__ import annotations

from paceline.train.gradients import Gradients
from paceline.train.optimizer_steps import OptimizerSteps


class SkippedSteps:
    """Notices gradients that were exchanged, were not finite, and were dropped without a step."""

    def __init__(self, gradients: Gradients, steps: OptimizerSteps) -> None:
        self._gradients = gradients
        self._steps = steps
        self._awaits_step = False
        self.was_left_out = False
        """Whether the step before this backward pass was left out."""

    def gradients_exchanged(self) -> None:
        """A step may follow, or may be left out."""
        self._awaits_step = True

    def step_ended(self) -> None:
        """The step was taken, or is counted as one."""
        self._awaits_step = False

    def look_back(self) -> None:
        """A backward pass begins, and will overwrite what tells of the step before."""
        self.was_left_out = self.is_left_out()

    def is_left_out(self, *, are_dropped: bool = True) -> bool:
        """Whether the last gradients were not finite and nobody has stepped with them.

        Args:
            are_dropped: Whether only gradients count that have been dropped since.

        """
        return (
            self._awaits_step
            # Of a sharded model each worker sees a part, and they would come to different ends.
            and not self._gradients.is_sharded
            and not self._steps.has_scaler
            and not self._steps.is_inside_step
            and self._gradients.buckets.were_broken(are_dropped=are_dropped)
        )
