"""Workers whose times vary: when the slowest comes, and who waited for it."""

from __future__ import annotations

import numpy as np

from paceline.collectives import Numbers
from paceline.rehearse.program import NodeRules
from paceline.rehearse.slowest import slowest_of
from paceline.rehearse.worker_clock import WorkerClock
from paceline.teams.journal import TeamName


def slowest_s(clock: WorkerClock, rules: NodeRules, team: TeamName) -> Numbers:
    """When the slowest comes of all the workers that a role stands for in a team."""
    if not rules.jitter and not rules.node_jitter:
        return clock.ready_s
    in_node, variance = rules.slowest_worker
    own_s = np.sqrt(clock.variance)
    if team == "node":
        return clock.ready_s + own_s * in_node
    of_nodes, _ = rules.slowest_node
    if team == "across":
        return clock.ready_s + np.hypot(own_s, np.sqrt(clock.variance_of_node)) * of_nodes
    node_s = np.sqrt(clock.variance_of_node + clock.variance * variance)
    return clock.ready_s + own_s * in_node + node_s * of_nodes


def later_of_two_s(clock: WorkerClock, rules: NodeRules, is_outward: bool) -> Numbers:
    """When the later one comes of the two workers of a transfer, who vary by as much."""
    if not rules.jitter and not rules.node_jitter:
        return clock.ready_s
    variance = clock.variance + (clock.variance_of_node if is_outward else 0.0)
    return clock.ready_s + np.sqrt(variance) * slowest_of(2)[0]


def forget_lead(rules: NodeRules, team: TeamName, clock: WorkerClock, waited: Numbers) -> None:
    """Who waited for others is as late as they are."""
    if not np.any(waited):
        return
    is_all = bool(np.all(waited))

    def kept(otherwise: Numbers, *, then: Numbers = 0.0) -> Numbers:
        # One number instead of many where all waited, which is many times as fast to play.
        return then if is_all else np.where(waited, then, otherwise)

    if team == "node":
        _, variance = rules.slowest_worker
        grown = clock.node_variance + clock.variance * variance
        clock.node_variance = kept(clock.node_variance, then=grown)
    else:
        clock.node_variance = kept(clock.node_variance)
        clock.node_step_deviation = kept(clock.node_step_deviation)
    clock.own_variance = kept(clock.own_variance)
    clock.step_deviation = kept(clock.step_deviation)
