"""A kind of node: a machine with workers, and how many of it there are."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from paceline.cluster.device import Device
from paceline.cluster.host import load_host
from paceline.cluster.link import Link
from paceline.cluster.record import Accepts, Count, Name, NotNegative, Positive, Record, Text

_A_HOST = "a host's name such as 'xeon-8480', or its speed as a number such as 1.5"


class Jitter(NamedTuple):
    """How much times for the same work vary: standard deviation over mean."""

    worker: float
    """Of a worker against the others of its node."""
    node: float
    """Of a node against the others, beside what its workers make it vary."""


# Assumed where it was not measured (docs/evidence/steps.md, "Workers that vary"). On GPUs: from
# five networks on one and eight GPUs of a node, and from EfficientNet-B4 on one, two and four
# nodes, which exchange little.
TYPICAL_JITTER = Jitter(worker=0.02, node=0.035)
TYPICAL_CPU_JITTER = Jitter(worker=0.05, node=0.0)


def typical_jitter(*, on_cpu: bool) -> Jitter:
    """How much workers vary where nothing is known."""
    return TYPICAL_CPU_JITTER if on_cpu else TYPICAL_JITTER


def _known_host(host: Any) -> Any:
    is_number = isinstance(host, int | float) and not isinstance(host, bool)
    if host is None or (is_number and 0 < host < math.inf):
        return host
    if not isinstance(host, str):
        raise ValueError(f"has to be {_A_HOST}, not {host!r}")
    try:
        load_host(host)
    except ValueError as problem:
        raise ValueError(f"= {host!r}: {problem}") from None
    return host


class Node(Record):
    """``count`` equal machines with ``workers_per_node`` devices each."""

    name: Name
    count: Count = 1
    workers_per_node: Count = Field(alias="workers")
    """In a cluster's file, a node's table has them as ``workers``."""
    device: Annotated[Device, Accepts("a device's name such as 'v100'")]
    inside: Link
    """Between two workers of the node."""
    between: Link
    """From the node to the network, and so to the other nodes."""
    price_per_hour: Annotated[
        NotNegative | None, Accepts("a number of US dollars such as 24.48")
    ] = None
    """US dollars for one node for one hour, however many of its workers are used."""
    host: Annotated[str | float | None, BeforeValidator(_known_host), Accepts(_A_HOST)] = None
    """What issues the operators: a name of ``paceline.host_names()``, or how many times as fast it
    is as the host of the H200's profile (``paceline measure host``). None: nothing is known."""
    slowdown: Positive = 1.0
    """How many times as long a worker computes as its device alone would: cores, memory or power
    that workers share, or a machine that is slower than its kind."""
    jitter: Annotated[NotNegative | None, Accepts("a number of at least 0 such as 0.02")] = None
    """How much a worker's time for the same work varies: standard deviation over mean; None: what
    is typical, 0.02 on GPUs and 0.05 on CPUs."""
    node_jitter: Annotated[NotNegative | None, Accepts("a number of at least 0 such as 0.03")] = (
        None
    )
    """How much a node varies against the others, beside that; None: 0 where ``jitter`` is given
    and on CPUs, and otherwise what is typical, 0.035."""
    source: Text = ""
    """Where the number of workers and the price are from."""

    def jitter_of(self, *, on_cpu: bool) -> Jitter:
        """How much its workers vary: what was given, and otherwise what is typical.

        Args:
            on_cpu: Whether its device is a CPU.
        """
        typical = typical_jitter(on_cpu=on_cpu)
        if self.jitter is not None:
            typical = Jitter(self.jitter, 0.0)
        return typical if self.node_jitter is None else typical._replace(node=self.node_jitter)
