"""A strategy that chooses: it measures the job, and lets what suits it train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import torch

from paceline.auto.agreement import decided_by_first
from paceline.auto.candidates import ALLOWED, Candidate, candidates, names_from, wires_from
from paceline.auto.decision import Decision, decide
from paceline.auto.forecast import Forecast
from paceline.auto.measuring import (
    NUM_STEPS,
    Later,
    Probe,
    StepTimer,
    agree_on_steps,
    gathered,
    measure_links_briefly,
    probe_links,
    stage_of,
)
from paceline.auto.planner import Planner
from paceline.auto.watching import (
    ExchangeObserver,
    Reference,
    StepClock,
    Window,
    agreed_window,
)
from paceline.cluster.record import Count, Share
from paceline.measure.links import LinkTimes
from paceline.strategies import Replica, Schedule, Strategy
from paceline.strategies.equality import find_unequal
from paceline.teams import Pending, Team, Workers
from paceline.teams.backend import library_in_use
from paceline.traces.traced_team import traced_workers
from paceline.train import optimizer_state

_START = Candidate("sync")


class Auto(Strategy):
    """Measures computing and links in the running job, and picks the strategy that suits them.

    The first 12 steps are synchronous and measured. Then the cost model of :func:`paceline.predict`
    is asked with the measured figures, and the candidate that changes training the least among the
    fastest goes on. Its steps and exchanges are watched; when they change, links are measured again
    and the choice is made anew. All workers choose the same.

    Args:
        allow: The strategies to choose from, in a list or with commas between. "sync" and
            "sync-hierarchical" average every gradient and leave training as it is; "local-sgd" and
            "daso" let nodes differ for some steps, which may cost accuracy.
        max_period: The most steps from one exchange between nodes to the next.
        wires: The forms in which parameters may travel between nodes, in a list or with commas
            between: "fp32", "bf16", "fp16", "int8".
        least_gain: The share of the step time that a choice has to save over one that changes
            training less.
        check_every: Steps from one look at the step times to the next, about.

    """

    summary = "measure the job, pick the strategy that suits it, and follow the network"
    chooses = True

    def __init__(
        self,
        *,
        allow: Sequence[str] | str = ALLOWED,
        max_period: Count = 8,
        wires: Sequence[str] | str = ("fp32", "bf16"),
        least_gain: Share = 0.03,
        check_every: Count = 16,
    ) -> None:
        super().__init__()
        self._names = names_from(allow)
        self._wires = wires_from(wires)
        self._max_period = max_period
        self._least_gain = least_gain
        self._check_every = check_every
        self.current = _START
        """What trains now, as a name and options."""
        self.inner = _START.make()
        """The strategy that trains now."""
        self.decisions: list[str] = []
        """Every decision so far with its reason, in one line each."""

    def pick(
        self, step_s: Callable[[Strategy], float], *, alone_s: float, num_nodes: int
    ) -> Strategy:
        """What would be chosen, given what strategies take: without a job to measure.

        Args:
            step_s: Seconds per step of a strategy.
            alone_s: Seconds of a step without any exchange.
            num_nodes: The number of nodes.

        """
        if num_nodes == 1:
            return _START.make()
        decision = decide(
            self._candidates((2,)),
            lambda candidate: step_s(candidate.make()),
            alone_s=alone_s,
            least_gain=self._least_gain,
        )
        return decision.chosen.make()

    def _candidates(self, node_sizes: Sequence[int]) -> list[Candidate]:
        return candidates(
            self._names, max_period=self._max_period, wires=self._wires, node_sizes=node_sizes
        )

    def start(self, replica: Replica, workers: Workers) -> None:
        """Begin synchronously; nothing is known yet."""
        super().start(replica, workers)
        self._has_choice = workers.num_nodes > 1
        # What NCCL carries is only queued by the host, which does not see its end.
        is_seen = self._has_choice and library_in_use() == "gloo"
        self._observer = ExchangeObserver(workers.clock, is_on=is_seen)
        self._steps = StepClock(workers.clock)
        self._observed = traced_workers(workers, self._observer) if self._has_choice else workers
        self._start_inner(_START)
        self._measure_anew()

    def _measure_anew(self) -> None:
        self._timer = StepTimer(self.workers.clock, self.replica.device)
        self._num_measured = 0
        self._planner = Planner(
            self._candidates(self.workers.node_sizes), least_gain=self._least_gain
        )
        self._forecast: Forecast | None = None
        self._probe: Probe | None = None
        self._watch_anew()
        self._timer.begin_step()

    def _start_inner(self, candidate: Candidate) -> None:
        self.current, self.inner = candidate, candidate.make()
        self.inner.start(self.replica, self._observed)
        self._inner_counted = (0.0, 0.0)

    @property
    def _is_measuring(self) -> bool:
        return self._has_choice and self._num_measured < NUM_STEPS

    @property
    def _is_separate(self) -> bool:
        return self._is_measuring and stage_of(self._num_measured) == "separate"

    @property
    def phase(self) -> str:
        """Measuring, or the phase of the strategy that trains."""
        return "measuring" if self._is_measuring else self.inner.phase

    def schedule(self) -> Schedule:
        """That of the strategy that trains."""
        return self.inner.schedule()

    def bucket_ready(self, bucket: torch.Tensor) -> Pending | None:
        """As the strategy that trains; in some measured steps when the backward pass is over."""
        if not self._is_separate:
            return self.inner.bucket_ready(bucket)
        self._timer.mark("bucket")
        return Later(lambda: self._begin_late(bucket))

    def _begin_late(self, bucket: torch.Tensor) -> Pending | None:
        self._timer.mark("backward")
        return self.inner.bucket_ready(bucket)

    def gradients_ready(self) -> None:
        """As the strategy that trains."""
        self.inner.gradients_ready()
        if self._is_separate:
            self._timer.mark("exchanged")

    def after_step(self) -> None:
        """Let the strategy react; then look at what was measured, if it is time."""
        if self._is_measuring:
            self._timer.end_step(stage_of(self._num_measured))
        super().after_step()
        self.inner.after_step()
        self._count_inner()
        if self._is_measuring:
            self._num_measured += 1
            if self._num_measured == NUM_STEPS:
                self._decide_first()
            self._timer.begin_step()
        elif self._has_choice:
            self._num_watched += 1
            self._steps.end_step()
            if self._num_watched >= self._window_steps():
                self._check()

    def _count_inner(self) -> None:
        waited_s, merged_s = self.inner.waiting_s, self.inner.merging_s
        self.waiting_s += waited_s - self._inner_counted[0]
        self.merging_s += merged_s - self._inner_counted[1]
        self._inner_counted = (waited_s, merged_s)

    def _decide_first(self) -> None:
        agreed = agree_on_steps(self._timer, self.workers)
        if agreed is None:
            self._measure_anew()
            return
        computing, sync_s = agreed
        links = self._measure_links()

        def plan() -> Decision:
            self._planner.take_figures(computing, sync_s, links, self._forecasts())
            return self._planner.decide(self._forecasts())

        decision = self._shared(plan)
        self._has_choice = decision is not None
        self._apply(decision)

    def _window_steps(self) -> int:
        """Whole periods, so that windows have equally many exchanges."""
        period = int(self.inner.status().get("period", 1))
        return -(-self._check_every // period) * period

    def _watch_anew(self) -> None:
        self._reference = Reference()
        self._begin_window()

    def _begin_window(self) -> None:
        self._num_watched = 0
        self._steps.begin()
        self._observer.take_rate()

    def _check(self) -> None:
        """All workers look at the last steps together; nothing else is said most of the time."""
        own = {
            "step_s": self._steps.mean_s(),
            "rate_bytes_per_s": self._observer.take_rate(),
        }
        window = agreed_window(gathered(own, self.workers.world))
        if self._reference.look(window):
            self._look_at_links(window)
        else:
            count = len(self._reference.windows)
            if count & (count - 1) == 0:  # ever more rarely
                self._correct()
        self._begin_window()

    def _look_at_links(self, window: Window) -> None:
        self._drain()
        if self._probe is None or self._probe.is_other(
            probe_links(self.workers, self._probe.num_bytes)
        ):
            self._decide_again()
        else:
            self._reference.false_alarm(window)

    def _decide_again(self) -> None:
        links = self._measure_links()

        def plan() -> Decision:
            self._planner.take_links(links)
            return self._planner.decide(self._forecasts())

        self._apply(self._shared(plan))
        self._watch_anew()

    def _correct(self) -> None:
        windows = self._reference.windows
        steps_s = [window.step_s for window in windows[len(windows) // 2 :]]  # the new ones

        def plan() -> Decision:
            self._planner.correct(self.current, steps_s, self._forecasts())
            return self._planner.decide(self._forecasts(), current=self.current)

        self._apply(self._shared(plan))

    def _measure_links(self) -> LinkTimes:
        self._drain()
        self._probe = probe_links(self.workers)
        return measure_links_briefly(self.workers)

    def _drain(self) -> None:
        """Wait for what is under way, which would share the links with a measurement."""
        self.workers.background.run(lambda: None, device=self.replica.device).wait()
        self.workers.world.barrier()

    def _forecasts(self) -> Forecast:
        if self._forecast is None:
            self._forecast = Forecast(
                self.replica, self.workers.node_sizes, serial=library_in_use() == "gloo"
            )
        return self._forecast

    def _shared(self, plan: Callable[[], Decision]) -> Decision | None:
        world = self.workers.world
        return decided_by_first(plan, self._planner, world, otherwise=str(self.current))

    def _apply(self, decision: Decision | None) -> None:
        if decision is None:
            return
        is_first = not self.decisions
        if decision.chosen != self.current:
            if self._are_some_behind():
                return  # the next look decides again
            self._swap(decision.chosen)
        elif not is_first:
            return
        line = f"auto, step {self.step}: {decision.reason}"
        self.decisions.append(line)
        self.news.append(line)
        self._watch_anew()

    def _are_some_behind(self) -> bool:
        """Whether workers stand by in join(): synchronous ones catch up only when all have ended.

        Nothing else could start from their parameters.
        """
        parameters = {name: parameter for parameter, name in self.replica.names.items()}
        return self.current.is_exact and bool(find_unequal(parameters, self.workers.world))

    def _swap(self, candidate: Candidate) -> None:
        """Let another strategy train: all workers are equal in between."""
        self.inner.finish()
        self._count_inner()
        self._level_optimizers(candidate)
        self._start_inner(candidate)

    def _level_optimizers(self, candidate: Candidate) -> None:
        """Nodes that trained on their own have different momenta, and would drift apart again."""
        if candidate.is_exact and not self.current.is_exact:
            optimizer_state.average(self.replica.optimizers, self.workers.world)

    def report(self, metric: float) -> None:
        """As the strategy that trains."""
        self.inner.report(metric)

    def parameters_changed(self) -> None:
        """Measure the other model anew."""
        self._level_optimizers(_START)
        self._start_inner(_START)
        self._measure_anew()

    def finish(self) -> None:
        """As the strategy that trains. What follows, if anything, is watched anew."""
        self.inner.finish()
        self._count_inner()
        self._begin_window()

    def lockstep(self) -> Team | None:
        """That of the strategy that trains."""
        team = self.inner.lockstep()
        if team is self._observed.world:
            return self.workers.world
        return self.workers.node if team is self._observed.node else team

    def status(self) -> dict[str, float]:
        """Which allowed strategy trains, from 0; whether it is being measured; its own numbers."""
        return {
            "choice": ALLOWED.index(self.current.name),
            "is_measuring": float(self._is_measuring),
            **self.inner.status(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Decisions and what they stand on, and the state of the strategy that trains."""
        return {
            **super().state_dict(),
            "node_sizes": list(self.workers.node_sizes),
            "current": self.current.to_dict(),
            "inner": self.inner.state_dict(),
            "decisions": list(self.decisions),
            "num_measured": self._num_measured,
            "timer": self._timer.state_dict(),
            "planner": self._planner.state_dict(),
            "num_watched": self._num_watched,
            "probe": None if self._probe is None else astuple(self._probe),
            "reference": self._reference.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the strategy that was chosen. On other nodes the choice is made anew."""
        self._go_on(state, lambda: self.inner.load_state_dict(state["inner"]))
        if tuple(state["node_sizes"]) == self.workers.node_sizes:
            self._num_measured = state["num_measured"]
            self._timer.load_state_dict(state["timer"])
            self._planner.load_state_dict(state["planner"])
            self._num_watched = state["num_watched"]
            self._probe = None if state["probe"] is None else Probe(*state["probe"])
            self._reference.load_state_dict(state["reference"])

    def load_averaged(self, state: dict[str, Any]) -> None:
        """Go on with the strategy that was chosen, and choose anew."""
        self._go_on(state, lambda: self.inner.load_averaged(state["inner"]))

    def _go_on(self, state: dict[str, Any], load_inner: Callable[[], None]) -> None:
        saved = Candidate.from_dict(state["current"])
        if saved != self.current:
            self._start_inner(saved)
        load_inner()
        self.step = state["step"]
        self.decisions = list(state["decisions"])
        self._measure_anew()
