"""Where one worker is in time: its host and its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from paceline.collectives import Numbers

_Numbers: TypeAlias = tuple[Numbers, Numbers, Numbers, Numbers, Numbers, Numbers]


@dataclass
class WorkerClock:
    """One worker's timelines: what the next event may not be earlier than."""

    host_s: Numbers = 0.0
    device_s: Numbers = 0.0
    own_variance: Numbers = 0.0
    """Of the worker's time against the others of its node, in seconds squared."""
    node_variance: Numbers = 0.0
    """Of the node's time against the other nodes."""
    step_deviation: Numbers = 0.0
    """Of this step so far: within a step a worker is slow or fast, steps are independent."""
    node_step_deviation: Numbers = 0.0
    """The same of the node."""

    @property
    def variance(self) -> Numbers:
        """Of the worker's time, this step included."""
        return self.own_variance + self.step_deviation**2

    @property
    def variance_of_node(self) -> Numbers:
        """Of the node's time, this step included."""
        return self.node_variance + self.node_step_deviation**2

    @property
    def numbers(self) -> _Numbers:
        """All that the clock shows."""
        return (
            self.host_s,
            self.device_s,
            self.own_variance,
            self.node_variance,
            self.step_deviation,
            self.node_step_deviation,
        )

    @numbers.setter
    def numbers(self, shown: _Numbers) -> None:
        (
            self.host_s,
            self.device_s,
            self.own_variance,
            self.node_variance,
            self.step_deviation,
            self.node_step_deviation,
        ) = shown

    def share(self, same: Callable[[Numbers], Numbers]) -> None:
        """Show other workers' times where they are the same."""
        host_s, device_s, own, of_node, step, node_step = self.numbers
        self.numbers = (
            same(host_s),
            same(device_s),
            same(own),
            same(of_node),
            same(step),
            same(node_step),
        )

    def end_step(self) -> Numbers:
        """When the step ends; what comes next varies independently."""
        self.own_variance, self.step_deviation = self.variance, 0.0
        self.node_variance, self.node_step_deviation = self.variance_of_node, 0.0
        return self.ready_s

    @property
    def ready_s(self) -> Numbers:
        """When everything issued so far is done."""
        return np.maximum(self.host_s, self.device_s)

    def hold(self, until_s: Numbers, *, host: bool) -> None:
        """Do nothing before a moment."""
        self.device_s = np.maximum(self.device_s, until_s)
        if host:
            self.host_s = np.maximum(self.host_s, until_s)

    def begin_background(self, before_s: Numbers) -> None:
        """Where background work begins that is asked for now, behind what was asked for before."""
        self.end_step()
        self.host_s = self.device_s = np.maximum(self.ready_s, before_s)

    def read(self) -> None:
        """The host waits until the device is through."""
        self.host_s = self.ready_s

    def until_s(self, moment_s: Numbers) -> Numbers:
        """Seconds until a moment on the host; below 0 if it is over."""
        return moment_s - self.host_s
