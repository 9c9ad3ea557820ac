"""A training algorithm, written as a sequential program over a worker's teams.

A strategy reacts to four moments of a training loop. It does not know which hardware it runs on,
nor whether it trains or is rehearsed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from paceline.strategies.equality import find_unequal, make_equal
from paceline.strategies.options import Options, checked, options_type_of
from paceline.strategies.replica import Replica
from paceline.strategies.schedule import Schedule
from paceline.teams import Pending, Team, Workers

BUCKET_BYTES = 25 << 20
"""Of gradients that travel together, as in torch's DDP."""


class Strategy:
    """Base of all training algorithms. Override the moments that the algorithm needs.

    The keyword-only parameters of a subclass's constructor are its options.
    """

    options_type: ClassVar[type[Options]] = Options
    """Made from the constructor."""
    summary: ClassVar[str] = ""
    """One line for the list of strategies."""
    bucket_bytes: int = BUCKET_BYTES
    """About how many bytes of gradients :meth:`bucket_ready` gets at once."""
    chooses: ClassVar[bool] = False
    """Whether it only picks one of the others (:meth:`pick`) and lets that one train."""
    survives: ClassVar[bool] = False
    """Whether the other nodes can go on when one is lost: nodes meet in ``background.cross`` and
    in collectives of the world alone, and those after steps, and at the end."""
    takes_shards: ClassVar[bool] = False
    """Whether it treats every value alone, and so can train a part of each parameter (FSDP2)."""
    options: Options
    """What the constructor was given, validated, and the defaults."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "__init__" in vars(cls):
            cls.__init__ = checked(cls.__init__)  # type: ignore[method-assign]
        cls.options_type = options_type_of(cls)

    @checked
    def __init__(self) -> None:
        self.step = 0
        """How many optimizer steps were taken."""
        self.waiting_s = 0.0
        """Time spent with nothing to do but wait for other workers."""
        self.merging_s = 0.0
        """Time spent on taking over other workers' results."""
        self.news: list[str] = []
        """What it has decided, one line each; whoever trains it logs them and clears the list."""

    @property
    def phase(self) -> str:
        """The part of its schedule that the current step belongs to; most strategies have one."""
        return "all"

    def schedule(self) -> Schedule:
        """The phases of the run, with their lengths and periods; most strategies have one phase."""
        return Schedule()

    def set_run_length(self, num_steps: int) -> None:
        """The run will take so many optimizer steps; told before it begins, if it is known."""

    def pick(
        self, step_s: Callable[[Strategy], float], *, alone_s: float, num_nodes: int
    ) -> Strategy:
        """The strategy that trains: this one, unless it only chooses among others.

        Args:
            step_s: Seconds per step under a strategy.
            alone_s: Seconds of a step without any exchange.
            num_nodes: The number of nodes.

        """
        return self

    def skip_steps(self, num_steps: int) -> None:
        """Count so many steps of the current phase as taken: they repeat those that were."""
        self.step += num_steps

    def start(self, replica: Replica, workers: Workers) -> None:
        """Training begins. All workers have equal parameters and buffers.

        Args:
            replica: This worker's copy of the model.
            workers: The workers of the job, as this one sees them.

        """
        self.replica = replica
        self.workers = workers

    def bucket_ready(self, bucket: torch.Tensor) -> Pending | None:
        """A bucket of gradients is complete: begin to exchange it, in place, or do nothing.

        Args:
            bucket: Gradients of several parameters, one after another in a flat tensor.

        Returns:
            What is waited for before the gradients are used, if anything.

        """
        return None

    def gradients_ready(self) -> None:
        """All gradients are there and exchanged; the optimizer has not stepped yet."""

    def after_step(self) -> None:
        """The optimizer has stepped."""
        self.step += 1

    def report(self, metric: float) -> None:
        """A metric was reported.

        Args:
            metric: The average over all workers, the same on each; lower is better.

        """

    def parameters_changed(self) -> None:
        """The model has other trainable parameters now; they are equal on all workers."""

    def finish(self) -> None:
        """Training is over: make all workers equal, bit for bit; here, by an average."""
        self.make_all_equal()

    def make_all_equal(self, *, weight: float | torch.Tensor = 1.0) -> None:
        """Give all workers the average of their parameters and buffers, if any differ.

        Args:
            weight: What this worker counts in it, such as ``replica.trained_since(tally)``.

        """
        tensors = self.replica.tensors()
        if find_unequal(tensors, self.workers.world):
            make_equal(tensors, self.workers.world, weight=weight)

    def lockstep(self) -> Team | None:
        """The team whose members have equal parameters after every step; None promises nothing.

        If it is the world, the optimizer's and this strategy's state are equal as well. A
        checkpoint can then be loaded on another layout: all take over the first worker's.
        """
        return None

    def status(self) -> dict[str, float]:
        """Numbers worth watching, such as the current period."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs: plain values and tensors."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state.

        Args:
            state: What :meth:`state_dict` returned.

        """
        self.step = state["step"]

    def load_averaged(self, state: dict[str, Any]) -> None:
        """Go on from a save on other nodes, whose parameters were averaged; or refuse to.

        All workers have the same parameters, and get the same state. A strategy that keeps more
        than its step says here what that is worth on other nodes.

        Args:
            state: What :meth:`state_dict` returned, with the tensors of all workers averaged.

        """
        if state.keys() - {"step"}:
            raise ValueError(
                f"{type(self).__name__} does not say how to go on from an average of its workers; "
                "resume on the same layout, or give it a load_averaged()"
            )
        self.step = state["step"]

    def wait(self, pending: Pending) -> None:
        """Wait, and count the time as waiting.

        Args:
            pending: What to wait for.

        """
        if not isinstance(pending, Pending):
            raise ValueError(
                f"{type(self).__name__} waits for {type(pending).__name__}, and not for what a "
                "team's all_reduce() or another of its calls has returned"
            )
        start = self.workers.clock()
        pending.wait()
        self.waiting_s += self.workers.clock() - start
