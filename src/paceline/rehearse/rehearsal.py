"""A rehearsal: a step under a strategy, recorded once and timed for any cluster of its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.cluster import Cluster
from paceline.kernels.model import KernelModel
from paceline.rehearse.cache import Known, known_of
from paceline.rehearse.choice import Choice
from paceline.rehearse.conditions import Conditions
from paceline.rehearse.play import play
from paceline.rehearse.price import price
from paceline.rehearse.record import Assumptions, Recording
from paceline.rehearse.settle import settle
from paceline.rehearse.settle_near import settle_near
from paceline.rehearse.timeline import Timeline, Timelines
from paceline.steps import Capture, Step
from paceline.strategies import Strategy

# Conditions that are timed together: more of them are not faster, and take more memory. Where
# devices differ, each one has an array of all kernels' times.
_AT_ONCE, _DEVICES_AT_ONCE = 65536, 1024


class Rehearsal:
    """Times one step under one strategy on many clusters.

    Args:
        step: What is trained.
        strategy: A strategy's name, or a strategy, which stays as it is.
        node_sizes: The number of workers of each node.
        num_steps: The run's length, for a strategy that wants to know it.
        **options: The strategy's options.

    """

    def __init__(
        self,
        step: Step,
        strategy: str | Strategy,
        *,
        node_sizes: Sequence[int],
        num_steps: int | None = None,
        **options: Any,
    ) -> None:
        self._choice = Choice(strategy=strategy, options=options, num_steps=num_steps)
        self._choice.make()  # a wrong option is told before work begins
        self._step = step
        self._known: Known = known_of(step)
        self._node_sizes = tuple(node_sizes)

    @property
    def capture(self) -> Capture:
        """The step's capture."""
        return self._known.capture

    def is_same_on_more_nodes(self) -> bool:
        """Whether this rehearsal can be retimed with another number of nodes."""
        return self._known.is_same_on_more_nodes(self._step, self._choice, self._node_sizes[0])

    def record(self, assumed: Assumptions = Assumptions()) -> Recording:  # noqa: B008
        """What the workers do, if time is as assumed; the second time at once."""
        return self._known.recorded(self._step, self._choice, self._node_sizes, assumed)

    def time(
        self,
        cluster: Cluster,
        kernel_model: KernelModel | Mapping[str, KernelModel],
        *,
        jitter: float | None = None,
        with_spans: bool = False,
    ) -> Timeline:
        """Play the programs on a cluster.

        Args:
            cluster: A cluster whose nodes have the rehearsed numbers of workers.
            kernel_model: What kernels take: on all devices, or by a device's name.
            jitter: How much a worker's time varies, in place of the cluster's own figure.
            with_spans: Whether to note what happened when, for a trace.

        """

        def played(recording: Recording, *, left: object = None) -> Timeline:
            programs = price(recording, kernel_model, cluster, jitter=jitter, call=self._known.call)
            return play(programs, with_spans=with_spans)

        return settle(self.record, played)

    def retime(
        self,
        conditions: Conditions,
        kernel_model: KernelModel,
        *,
        capture: Capture | None = None,
        near: npt.NDArray[np.int_] | None = None,
    ) -> Timelines:
        """Play the programs under many conditions at once.

        All nodes are alike. A number of workers other than the recorded one is possible where a
        node's workers all do the same, another number of nodes where what they communicate does
        not depend on it (:meth:`is_same_on_more_nodes`).

        Args:
            conditions: Numbers, or arrays of one length.
            kernel_model: What kernels take on the device that is made faster or slower.
            capture: Another capture of the step, with another batch size: the same calls on other
                shapes. The strategy then does the same, and is not recorded again.
            near: The lateness that conditions much like these were settled with: fewer plays.

        """
        recording = self.record()
        if capture is not None and not has_same_calls(capture, self.capture):
            raise ValueError("The other capture has other calls: rehearse its own step.")
        size = recording.node_sizes[0]
        sizes = set(np.ravel(conditions.topology.workers_per_node).tolist())
        if sizes != {size} and not recording.is_uniform:
            raise ValueError(
                f"Workers of a node do different things under {recording.strategy}: rehearse it "
                f"with another number of workers; this rehearsal has {size}."
            )
        # What a strategy does with the time is another thing under each of the conditions.
        has_devices = np.ndim(conditions.arithmetic) or np.ndim(conditions.memory)
        several = _DEVICES_AT_ONCE if has_devices else _AT_ONCE
        at_once = 1 if recording.is_time_used else several

        def timed(part: Conditions, near: npt.NDArray[np.int_] | None) -> Timeline:
            def played(recording: Recording, *, left: npt.NDArray[np.bool_] | None) -> Timeline:
                own = recording if capture is None else replace(recording, capture=capture)
                some = part if left is None else part.only(left)
                return play(price(own, kernel_model, some, call=self._known.call))

            if near is None or recording.is_time_used or not np.any(near):
                return settle(self.record, played)
            return settle_near(near, self.record, played)

        parts = list(conditions.parts(at_once))
        starts = range(0, len(parts) * at_once, at_once)
        nears = [None if near is None else near[start : start + at_once] for start in starts]
        return Timelines(parts=tuple(map(timed, parts, nears)))


def has_same_calls(one: Capture, other: Capture) -> bool:
    """Whether two captures differ in nothing but shapes, as those of two batch sizes do."""
    return len(one.calls) == len(other.calls) and all(
        (a.phase, a.op) == (b.phase, b.op) for a, b in zip(one.calls, other.calls, strict=True)
    )
