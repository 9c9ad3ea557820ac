"""Record one worker: what a strategy does around a captured step, by the code that trains.

The step's own kernels are captured once. Here the strategy's code runs for several steps: autograd
hands out gradients in the order and at the moments of the capture, through a chain of
autograd functions that compute nothing, and everything that the hooks, the strategy and the
optimizer do is written down.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from paceline.rehearse.choice import own_copy
from paceline.steps import Call, Capture
from paceline.steps.fake_world import FakeWorld, meta_world
from paceline.steps.recorder import Recorder
from paceline.steps.step import Step
from paceline.strategies import Phase, Strategy
from paceline.teams import CollectiveName
from paceline.teams.journal import JOURNALS_IF_LATE, Journal
from paceline.teams.virtual import virtual_workers
from paceline.train import attach

_MIN_STEPS = 8
_MOST_GRADIENTS = 1_600_000
"""Of all recorded steps of a node's workers; about half a minute's work."""
_USUAL_PERIOD = 32
"""Never refused: the longest that a strategy has by default."""
_STEP_GRADIENTS = 10
"""A step takes as long as so many gradients, beside its own."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A stretch of the captured step's calls."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecording:
    """One worker's program: what happened in each step, and the phase it belongs to."""

    steps: tuple[tuple[Any, ...], ...]
    phases: tuple[str, ...]
    extra_bytes: int
    """Memory that buckets and the strategy keep beside the plain training's."""
    is_time_used: bool = False
    """Whether the program did something with the time, which is then to be found out."""


def record_worker(
    step: Step,
    capture: Capture,
    strategy: Strategy,
    *,
    node_sizes: tuple[int, ...],
    node: int = 0,
    index: int = 0,
    lateness: int = 0,
    readings: Sequence[float] | None = None,
    is_preview: bool = False,
    collective: CollectiveName = "backend",
) -> WorkerRecording:
    """Run a strategy as one worker of a virtual cluster, around the captured step.

    Args:
        step: What is trained.
        capture: The step's capture.
        strategy: The strategy, which is copied and stays as it is.
        node_sizes: The number of workers of each node.
        node: The worker's node.
        index: The worker's place in its node.
        lateness: How often a strategy that asks whether an exchange is over hears "no" before
            "yes".
        readings: What the strategy reads of the clock and hears from teams that agree; None
            watches whether that matters.
        is_preview: One period of each phase is enough, to see what it is like.
        collective: By which algorithm teams sum and broadcast.

    """
    if strategy.chooses:
        raise ValueError(
            f"{type(strategy).__name__} only picks one of the other strategies, not the same on "
            "every cluster; predict() says which, and everything else takes that one"
        )
    _check_length(strategy, len(capture.gradients), index, node_sizes[node], lateness)
    chosen = own_copy(strategy)
    journal = Journal(lateness=lateness, readings=readings)
    workers = virtual_workers(journal, node_sizes, node=node, index=index)
    with (
        _uncollected(),
        meta_world(step) as world,
        Recorder(step.precision, journal) as recorder,
    ):
        recorder.phase = "optimizer"
        # Strategies read flags and counts: yes, somebody has sent something worth taking over.
        recorder.number_read = 1.0
        recorder.muted = True
        if not capture.evaluations:
            _make_optimizer_state(world)
        before_bytes = recorder.live_bytes
        with _emptied(world.optimizer):
            pace = attach(
                world.model, world.optimizer, chosen, workers=workers, collective=collective
            )
        try:
            recorder.muted = False
            extra_bytes = recorder.live_bytes - before_bytes
            chain = _Chain(world.model, capture, journal)
            _replay_optimizer(world.optimizer, capture, chain.end, journal)
            journal.take()
            steps: list[tuple[Any, ...]] = []
            phases: list[str] = []
            schedule = chosen.schedule()
            for phase in schedule.phases:
                num_steps = _num_steps(phase, schedule.longest_period, is_preview=is_preview)
                for _ in range(num_steps):
                    _take_step(world.optimizer, chain, has_closure=bool(capture.evaluations))
                    steps.append(tuple(journal.take()))
                    phases.append(chosen.phase)
                if phase.num_steps is not None:  # the rest of the phase is like what was seen
                    chosen.skip_steps(phase.num_steps - num_steps)
            is_time_used = journal.is_time_used
        finally:  # a strategy that is refused half-way must leave no hooks behind
            pace.detach()
    return WorkerRecording(
        steps=tuple(steps),
        phases=tuple(phases),
        extra_bytes=extra_bytes,
        is_time_used=is_time_used,
    )


def _check_length(
    strategy: Strategy, num_gradients: int, index: int, node_size: int, lateness: int
) -> None:
    """Refuse a period that would take minutes to record: every step of two periods is taken.

    Where the first two workers of a node do the same, no other is recorded. So a worker counts
    itself and those before it, and the sentence says what is fine for the whole node.
    """

    def longest(num_workers: int) -> int:
        # And a preview.
        num_journals = (num_workers + 1) * (JOURNALS_IF_LATE if lateness else 1)
        num_steps = _MOST_GRADIENTS // ((num_gradients + _STEP_GRADIENTS) * num_journals)
        return max(num_steps // 2, _USUAL_PERIOD)

    period = strategy.schedule().longest_period
    if period > longest(index + 1):
        raise ValueError(
            f"a period of {period:,} steps is too long to rehearse, since whole periods are "
            f"played: for this model and this cluster give at most {longest(node_size):,}; what "
            "an exchange costs a step falls in proportion to the period"
        )


def _num_steps(phase: Phase, period: int, *, is_preview: bool) -> int:
    """All steps of a short phase; of a long one enough for two periods of the schedule."""
    enough = _MIN_STEPS + 2 * period if period > 1 else _MIN_STEPS
    if is_preview:
        enough = period + 2
    return enough if phase.num_steps is None else min(phase.num_steps, enough)


def _make_optimizer_state(world: FakeWorld) -> None:
    for group in world.optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    world.optimizer.step()
    world.optimizer.zero_grad()


@contextmanager
def _emptied(optimizer: Optimizer) -> Iterator[None]:
    """Inside, an optimizer keeps nothing: comparing it with other workers' takes long."""
    kept = dict(optimizer.state)
    optimizer.state.clear()
    try:
        yield
    finally:
        optimizer.state.update(kept)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Inside, no garbage is looked for: what a recording makes is kept, and only slows that."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _take_step(optimizer: Optimizer, chain: _Chain, *, has_closure: bool) -> None:
    def evaluate() -> Tensor:
        optimizer.zero_grad()
        return chain.run()

    if has_closure:
        optimizer.step(evaluate)  # type: ignore[arg-type]
    else:
        evaluate()
        optimizer.step()


def _replay_optimizer(optimizer: Optimizer, capture: Capture, end: int, journal: Journal) -> None:
    """Make an optimizer's steps the captured one; its hooks run around them as ever."""
    # Behind each evaluation the optimizer's own calls, up to the next one.
    starts = capture.evaluations or (0,)
    stops = [*starts[1:], len(capture.calls)]
    own = [Replay(start + end - starts[0], stop) for start, stop in zip(starts, stops, strict=True)]

    def step(_self: Optimizer, closure: Callable[[], object] | None = None) -> None:
        for replay in own:
            if closure is None:
                journal.append(replay)
                continue
            closure()
            for part in _parted_at_reads(capture, replay):
                journal.append(part)

    optimizer.__class__ = type("ReplayedOptimizer", (type(optimizer),), {"step": step})
    optimizer._patch_step_function()


def _parted_at_reads(capture: Capture, replay: Replay) -> Iterator[Replay | Call]:
    """A stretch of calls; where the host reads a number, it waits for the device."""
    start = replay.start
    for place in range(replay.start, replay.stop):
        call = capture.calls[place]
        if call.op == "_local_scalar_dense":
            yield Replay(start, place)
            yield call
            start = place + 1
    yield Replay(start, replay.stop)


class _Chain:
    """A backward pass that computes nothing: one function per parameter, in captured order."""

    def __init__(self, model: nn.Module, capture: Capture, journal: Journal) -> None:
        parameters = dict(model.named_parameters())
        self._journal = journal
        phases = [call.phase for call in capture.calls]
        self._start = capture.evaluations[0] if capture.evaluations else 0
        self._forward_end = phases.index("backward")
        behind = phases[self._forward_end :]
        self.end = len(phases)
        """Where the captured backward pass ends: the first, if there are several."""
        if "optimizer" in behind:
            self.end = self._forward_end + behind.index("optimizer")
        ends = [min(self._start + each.after_call, self.end) for each in capture.gradients]
        ends[-1] = self.end
        starts = [self._forward_end, *ends[:-1]]
        self._links = [
            (parameters[gradient.parameter], Replay(start, end))
            for gradient, start, end in zip(capture.gradients, starts, ends, strict=True)
        ]
        self._gradients: dict[Tensor, Tensor] = {
            parameter: torch.empty_like(parameter, requires_grad=False)
            for parameter, _ in self._links
        }
        with _disable_current_modes():
            self._leaf = self._loss = torch.zeros(()).requires_grad_()
            for parameter, replay in reversed(self._links):
                self._loss = _Link.apply(self._loss, parameter, self._emit(replay))  # type: ignore[no-untyped-call]

    def run(self) -> Tensor:
        """One forward and backward pass; the loss."""
        self._journal.append(Replay(self._start, self._forward_end))
        self._leaf.grad = None  # as if it were the first backward pass every time
        self._loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        return self._loss.detach()

    def _emit(self, replay: Replay) -> Callable[[Tensor], Tensor]:
        def emit(parameter: Tensor) -> Tensor:
            self._journal.append(replay)
            with torch._C._DisableTorchDispatch():
                return self._gradients[parameter].detach()

        return emit


class _Link(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, carrier: Tensor, parameter: Tensor, emit: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.emit = emit
        ctx.parameter = parameter
        return carrier.view_as(carrier)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        return grads[0], ctx.emit(ctx.parameter), None
