"""Where one worker is in time: its host and its device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.collectives import Numbers


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

    def end_step(self) -> None:
        """What comes next varies independently."""
        self.own_variance, self.step_deviation = self.variance, 0.0
        self.node_variance, self.node_step_deviation = self.variance_of_node, 0.0

    @property
    def ready_s(self) -> Numbers:
        """When everything issued so far is done."""
        return np.maximum(self.host_s, self.device_s)

    def hold(self, until_s: Numbers, *, host: bool) -> None:
        """Do nothing before a moment."""
        self.device_s = np.maximum(self.device_s, until_s)
        if host:
            self.host_s = np.maximum(self.host_s, until_s)

    def copy(self) -> WorkerClock:
        """Where the background begins that the worker starts now."""
        return WorkerClock(self.host_s, self.device_s, self.variance, self.variance_of_node)
