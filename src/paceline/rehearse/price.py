"""Stage 2, price: give every stretch of calls and every collective of a recording its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from paceline.cluster import Cluster, Node, load_host
from paceline.kernels.model import KernelModel
from paceline.rehearse.conditions import Conditions
from paceline.rehearse.layout import Layout, Stretch
from paceline.rehearse.program import (
    Communication,
    NodeRules,
    Operation,
    Program,
    Programs,
    Role,
    Work,
)
from paceline.rehearse.record import Recording
from paceline.rehearse.record_worker import Replay
from paceline.rehearse.rules import distinct_nodes, rules_of_conditions, rules_of_node
from paceline.rehearse.step_prices import StepPrices, price_step
from paceline.steps import Call, Capture
from paceline.teams.journal import BackgroundWork, Collective, Transfer

R = TypeVar("R")


def call_anew(function: Callable[..., R], /, *arguments: Any, **numbers: Any) -> R:
    """Call a function; a cache remembers what it returned instead."""
    return function(*arguments, **numbers)


def price(
    recording: Recording,
    kernel_model: KernelModel | Mapping[str, KernelModel] | StepPrices,
    cluster: Cluster | Conditions,
    *,
    jitter: float | None = None,
    captures: Mapping[Node, Capture] | None = None,
    call: Callable[..., Any] = call_anew,
) -> Programs:
    """Price a recording for one cluster, or for as many as there are conditions.

    Args:
        recording: What the workers do.
        kernel_model: What kernels take: on all devices, or by a device's name; or what the
            recorded step's calls were measured to take on every worker.
        cluster: A cluster whose nodes have the recorded numbers of workers, or conditions.
        jitter: How much a worker's time varies, in place of the cluster's own figure.
        captures: The step with another batch, for kinds of node that have another one.
        call: Calls a function with arguments; a cache may know the result already.

    """
    if isinstance(cluster, Conditions):
        assert isinstance(kernel_model, KernelModel)
        prices = call(
            price_step,
            recording.capture,
            kernel_model,
            slowdown=1.0 if cluster.node is None else cluster.node.slowdown,
            arithmetic=cluster.arithmetic,
            memory=cluster.memory,
            host=cluster.host
            * (1.0 if cluster.node is None else load_host(cluster.node.host).speed),
        )
        rules = rules_of_conditions(cluster, serial=prices.serial)
        kinds = [(recording.node_sizes[0], prices, rules)]
    else:
        kinds = []
        for node, count in distinct_nodes(cluster):
            if isinstance(kernel_model, StepPrices):
                prices = kernel_model
            else:
                own = kernel_model
                own = own if isinstance(own, KernelModel) else own[node.device.name]
                capture = (captures or {}).get(node, recording.capture)
                host = load_host(node.host).speed
                prices = call(price_step, capture, own, slowdown=node.slowdown, host=host)
            rules = rules_of_node(cluster, node, count, serial=prices.serial, jitter=jitter)
            kinds.append((node.workers_per_node, prices, rules))
    return Programs(roles=tuple(_roles(recording, kinds, call)), recording=recording)


def _roles(
    recording: Recording,
    kinds: Sequence[tuple[int, StepPrices, NodeRules]],
    call: Callable[..., Any],
) -> list[Role]:
    roles = []
    for kind, (size, prices, rules) in enumerate(kinds):
        workers = recording.workers[size]
        programs = call(price_layout, recording.layouts[size], prices)
        # One for all, unless workers of other kinds of node have to meet each of them.
        is_uniform = len(kinds) == 1 and all(each is workers[0] for each in workers)
        for index, program in enumerate(programs[:1] if is_uniform else programs):
            roles.append(
                Role(program=program, rules=rules, node_kind=kind, node_size=size, index=index)
            )
    return roles


def price_layout(layout: Layout, prices: StepPrices) -> list[Program]:
    """The programs of one node's workers."""
    works = [_work(stretch, prices) for stretch in layout.stretches]

    def priced(events: Sequence[Any], card_share: float) -> tuple[Operation, ...]:
        return tuple(operation(event, card_share) for event in events)

    def operation(event: Any, card_share: float) -> Operation:
        if isinstance(event, int):
            return works[event]
        if isinstance(event, Collective | Transfer):
            return Communication(event, card_share)
        if isinstance(event, BackgroundWork):
            return BackgroundWork(event.ticket, priced(event.events, card_share))
        own: Operation = event
        return own

    made: dict[int, Program] = {}
    for program in layout.programs:
        if id(program) not in made:
            steps = zip(program, layout.card_shares, strict=True)
            made[id(program)] = tuple(priced(step, share) for step, share in steps)
    return [made[id(program)] for program in layout.programs]


def _work(stretch: Stretch, prices: StepPrices) -> Work:
    """The device is through max over j of (issued_j + the work from j on) after the beginning."""
    name, parts = stretch
    calls = [part for part in parts if isinstance(part, Call)]
    own_host_s, own_device_s = prices.calls(calls) if calls else (np.zeros(0), np.zeros(0))
    hosts, devices, place = [], [], 0
    for part in parts:
        if isinstance(part, Replay):
            hosts.append(prices.host_s[part.start : part.stop])
            devices.append(prices.device_s[..., part.start : part.stop])
        else:
            hosts.append(own_host_s[place : place + 1])
            devices.append(own_device_s[..., place : place + 1])
            place += 1
    host_s, device_s = np.concatenate(hosts), np.concatenate(devices, axis=-1)
    if not len(host_s):
        return Work(name, 0.0, 0.0, 0.0)
    before = np.cumsum(device_s, axis=-1)
    total = before[..., -1].copy()
    before -= device_s
    lags = np.cumsum(host_s) - before
    return Work(name, float(host_s.sum()), total, total + lags.max(axis=-1))
