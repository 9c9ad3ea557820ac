"""What each candidate would take in the running job, by the rehearsal's cost model.

A candidate's own code is recorded once, on a stand-in of the model; after each measurement the
recording is priced with the measured figures and played.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from paceline.auto.candidates import Candidate
from paceline.auto.figures import Figures
from paceline.auto.stand_in import StandIn, measured_prices, stand_in_capture, stand_in_step
from paceline.cluster import Cluster, load_cluster
from paceline.measure.links import MeasuredLink, measured_cluster
from paceline.rehearse.play import play
from paceline.rehearse.price import price
from paceline.rehearse.record import Assumptions, Recording, record
from paceline.rehearse.settle import settle
from paceline.rehearse.timeline import Timeline
from paceline.strategies import Replica

# Where nothing else is measured: only its device's name and its unused links are taken.
_BASE = "lab-2x2"
_MOST_INTERFERENCE = 0.95
_NUM_HALVINGS = 12

R = TypeVar("R")


class Forecast:
    """Times candidates on the figures of this job.

    Args:
        replica: The model; only its sizes matter.
        node_sizes: The number of workers of each node.
        serial: Whether the host carries messages itself, as with Gloo, rather than the device.
    """

    def __init__(self, replica: Replica, node_sizes: Sequence[int], *, serial: bool) -> None:
        self._node_sizes = tuple(node_sizes)
        self._serial = serial
        model = StandIn(replica)
        self._step = stand_in_step(model)
        self._capture = stand_in_capture(model)
        self._recordings: dict[tuple[Candidate, int], Recording] = {}

    def step_s(self, candidate: Candidate, figures: Figures) -> float:
        """Seconds per step, once the candidate is in its stride."""
        cluster = self._cluster(figures)
        prices = measured_prices(figures.computing, serial=self._serial)

        def recorded(assumed: Assumptions) -> Recording:
            return self._recorded(candidate, assumed)

        def played(recording: Recording, *, left: object = None) -> Timeline:
            return play(price(recording, prices, cluster))

        return float(settle(recorded, played).step_s)

    def fit_interference(self, figures: Figures, sync_s: float) -> Figures:
        """The same figures with what computing loses to exchanges beside it.

        So much that synchronous steps, in which both overlap, take what they took.
        """
        low, high = 0.0, _MOST_INTERFERENCE
        for _ in range(_NUM_HALVINGS):
            middle = (low + high) / 2
            tried = replace(figures, interference=middle)
            if self.step_s(Candidate("sync"), tried) < sync_s:
                low = middle
            else:
                high = middle
        return replace(figures, interference=low)

    def _recorded(self, candidate: Candidate, assumed: Assumptions) -> Recording:
        key = (candidate, assumed.lateness)
        if key not in self._recordings:
            self._recordings[key] = record(
                self._step,
                candidate.make(),
                self._node_sizes,
                capture=self._capture,
                assumed=assumed,
            )
        return self._recordings[key]

    def _cluster(self, figures: Figures) -> Cluster:
        between = figures.between.replace(interference=figures.interference)
        found = [MeasuredLink(place="between", link=between, samples=())]
        if figures.inside is not None:
            inside = figures.inside.replace(interference=figures.interference)
            found.append(MeasuredLink(place="inside", link=inside, samples=()))
        cluster = measured_cluster(load_cluster(_BASE), self._node_sizes, found)
        jitter = figures.computing.jitter
        kinds = [kind.replace(jitter=jitter) for kind in cluster.node_kinds]
        return cluster.replace(node_kinds=tuple(kinds))


def apart(call: Callable[[], R]) -> R:
    """Call a function where none of the caller's modes are on, and wait for it.

    Autocast, no_grad, a default device and the like belong to a thread.
    """
    outcome: list[R] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as problem:  # raised below, on the thread that asked
            problems.append(problem)

    thread = threading.Thread(target=run, name="paceline-forecast")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return outcome[0]
