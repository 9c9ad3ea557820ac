"""How long every step took: measured here, for statistics, loggers and traces."""

from __future__ import annotations

import logging

from paceline.strategies import Strategy
from paceline.teams import Workers
from paceline.traces.tracer import Tracer
from paceline.train.monitor import Monitor
from paceline.train.stats import Stats, StepTimes

_log = logging.getLogger("paceline")


class Meter:
    """Counts steps and their times, for the statistics, loggers, the trace and the watch."""

    def __init__(
        self, strategy: Strategy, workers: Workers, *, monitor: Monitor, tracer: Tracer | None
    ) -> None:
        self.stats = Stats()
        self._strategy = strategy
        self._workers = workers
        self._monitor = monitor
        self._tracer = tracer
        self._step_start_s = 0.0
        self._counted = (0.0, 0.0)

    def start(self) -> None:
        """The first step begins. All workers call it."""
        if self._tracer is not None:
            self._tracer.start(self._workers)
        self._monitor.start(
            {
                "strategy": type(self._strategy).__name__,
                "workers": self._workers.world.size,
                "nodes": self._workers.num_nodes,
                **_settings(self._strategy),
            }
        )
        self._times_since_last()

    def enter(self, phase: str) -> None:
        """What the training does from now on."""
        if self._tracer is not None:
            self._tracer.enter(phase)

    def end_step(self) -> None:
        """The strategy has reacted to a step: it is over."""
        times = self._times_since_last()
        self.stats.add(times)
        self._workers.watch.at_step(self._strategy.step)
        if self._tracer is not None:
            self._tracer.end_step(self.stats.num_steps)
        self._tell_news()
        self.stats.status = self._strategy.status()
        self.stats.bytes_by_team = _bytes_by_team(self._workers)
        self._monitor.log_step(self._strategy.step, times, self.stats)

    def _tell_news(self) -> None:
        """What the strategy has decided, the same on all workers: the first one logs it."""
        for line in self._strategy.news:
            if self._workers.world.rank == 0:
                _log.info(line)
                self._monitor.log_text(self._strategy.step, line)
            if self._tracer is not None:
                self._tracer.remark(line)
        self._strategy.news.clear()

    def _times_since_last(self) -> StepTimes:
        now_s = self._workers.clock()
        waited_s, merged_s = self._strategy.waiting_s, self._strategy.merging_s
        times = StepTimes(
            total_s=now_s - self._step_start_s,
            waiting_s=waited_s - self._counted[0],
            merging_s=merged_s - self._counted[1],
        )
        self._step_start_s, self._counted = now_s, (waited_s, merged_s)
        return times

    def log_metric(self, metric: float) -> None:
        """A metric was reported."""
        self._monitor.log(self._strategy.step, {"metric": metric})

    def finish(self) -> None:
        """Let the strategy finish, then write what was recorded. All workers call it."""
        if self._tracer is not None:
            self._tracer.close()
        # An exchange that is still under way ends in here, and its span with it.
        self._strategy.finish()
        if self._tracer is not None:
            name, num_workers = type(self._strategy).__name__, self._workers.world.size
            self._tracer.write(self._workers, title=f"{name} on {num_workers} workers, measured")

    def flush(self) -> None:
        """Write what is left to disk."""
        self._monitor.flush()

    def close(self) -> None:
        """Count no more steps."""
        self._monitor.close()


def _settings(strategy: Strategy) -> dict[str, str | float]:
    options = strategy.options.model_dump()
    return {
        f"option_{name}": value if isinstance(value, int | float) else str(value)
        for name, value in options.items()
    }


def _bytes_by_team(workers: Workers) -> dict[str, int]:
    background = workers.background
    return {
        "world": workers.world.bytes_handed,
        "node": workers.node.bytes_handed + background.node.bytes_handed,
        "across": workers.across.bytes_handed + background.across.bytes_handed,
    }
