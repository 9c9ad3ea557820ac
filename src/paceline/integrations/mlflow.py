"""Numbers of a run in MLflow."""

from __future__ import annotations

import importlib.util
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from paceline.train.logger import Logger

# A server that does not keep up makes training wait, rather than memory grow.
_MOST_UNDER_WAY = 64


class MlflowLogger(Logger):
    """Logs to the run that is active, or to a run of its own.

    Args:
        run_id: A run that exists; by default the active one, if there is any.
        experiment: The experiment of a new run, which is made if there is none of this name.
        tracking_uri: Where MLflow keeps its data; by default what MLflow itself is told.

    """

    def __init__(
        self,
        run_id: str | None = None,
        *,
        experiment: str = "paceline",
        tracking_uri: str | None = None,
    ) -> None:
        if importlib.util.find_spec("mlflow") is None:
            raise ImportError("MLflow is not installed; run: pip install 'paceline[mlflow]'")
        self._run_id = run_id
        self._experiment = experiment
        self._tracking_uri = tracking_uri
        self._is_own = False
        self._client: Any = None
        self._lines: list[str] = []
        self._sent: deque[Any] = deque()

    def start(self, settings: Mapping[str, str | float]) -> None:
        """Find the run, or begin one, and describe it."""
        import mlflow
        from mlflow.entities import Param

        self._client = mlflow.MlflowClient(tracking_uri=self._tracking_uri)
        active = mlflow.active_run()
        if self._run_id is None and active is not None:
            self._run_id = active.info.run_id
        if self._run_id is None:
            found = self._client.get_experiment_by_name(self._experiment)
            experiment_id = (
                self._client.create_experiment(self._experiment)
                if found is None
                else found.experiment_id
            )
            self._run_id = self._client.create_run(experiment_id).info.run_id
            self._is_own = True
        params = [Param(f"paceline/{name}", str(value)) for name, value in settings.items()]
        self._client.log_batch(self._run_id, params=params)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log one batch of metrics; a thread of MLflow's sends it."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [
            Metric(f"paceline/{name}", number, now_ms, step) for name, number in numbers.items()
        ]
        self._sent.append(self._client.log_batch(self._run_id, metrics=metrics, synchronous=False))
        while len(self._sent) > _MOST_UNDER_WAY:
            self._sent.popleft().wait()

    def log_text(self, step: int, line: str) -> None:
        """Add a line to the run's file of decisions, which is written in the end."""
        self._lines.append(f"step {step}: {line}")

    def flush(self) -> None:
        """Wait until all metrics have been sent."""
        while self._sent:
            self._sent.popleft().wait()
        if self._lines:
            self._client.log_text(self._run_id, "\n".join(self._lines), "paceline/decisions.txt")

    def close(self) -> None:
        """Send what is left, and end the run, if it was begun here."""
        self.flush()
        if self._is_own:
            self._client.set_terminated(self._run_id)
