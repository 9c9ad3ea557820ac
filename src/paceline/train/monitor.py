"""Numbers of a run for people to watch: told to all loggers, none of which may stop training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

from paceline.train.forecast import Forecast
from paceline.train.logger import Logger
from paceline.train.stats import Stats, StepTimes


class Monitor:
    """Tells loggers what happens; nothing if there are none, as on all workers but the first.

    Args:
        loggers: Whom to tell.
        log_every: Steps from one telling to the next; times are means over them.
        forecast: What is expected of the run.

    """

    def __init__(
        self,
        loggers: Sequence[Logger] = (),
        *,
        log_every: int = 1,
        forecast: Forecast | None = None,
    ) -> None:
        self._loggers = list(loggers)
        self._log_every = log_every
        self._forecast = forecast or Forecast()
        self._since: list[StepTimes] = []

    def start(self, settings: Mapping[str, str | float]) -> None:
        """The run begins."""
        told = {**settings, **self._forecast.settings()}
        self._tell(lambda logger: logger.start(told))

    def log_step(self, step: int, times: StepTimes, stats: Stats) -> None:
        """A step is over."""
        if not self._loggers:
            return
        self._since.append(times)
        if len(self._since) >= self._log_every:
            self._log_steps(step, stats)

    def _log_steps(self, step: int, stats: Stats) -> None:
        count = len(self._since)
        step_s = sum(each.total_s for each in self._since) / count
        numbers = {
            "step_s": step_s,
            "compute_s": sum(each.compute_s for each in self._since) / count,
            "waiting_s": sum(each.waiting_s for each in self._since) / count,
            "merging_s": sum(each.merging_s for each in self._since) / count,
            **{f"bytes_{team}": float(size) for team, size in stats.bytes_by_team.items()},
            **stats.status,
            **self._forecast.numbers(step, step_s, stats),
        }
        self._since.clear()
        self.log(step, numbers)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Numbers of one step."""
        self._tell(lambda logger: logger.log(step, numbers))

    def log_text(self, step: int, line: str) -> None:
        """A line of one step."""
        self._tell(lambda logger: logger.log_text(step, line))

    def flush(self) -> None:
        """Write what is left to disk."""
        self._tell(lambda logger: logger.flush())

    def close(self) -> None:
        """Write what is left to disk, and nothing from now on."""
        self._tell(lambda logger: logger.close())
        self._loggers.clear()

    def _tell(self, tell: Callable[[Logger], None]) -> None:
        for logger in list(self._loggers):
            try:
                tell(logger)
            except Exception as error:  # whatever a logger does, training goes on
                self._loggers.remove(logger)
                warnings.warn(
                    f"{type(logger).__name__} failed and is left out from now on, training goes "
                    f"on: {type(error).__name__}: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )
