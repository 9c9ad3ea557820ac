"""The host: how fast a node's processor issues what its device runs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from paceline.cluster.record import Positive, Record, Text
from paceline.suggestion import suggestion

# One standard deviation of the speed, relative. Hosts of one kind of GPU differ by 30 % and more;
# what a processor's name says is no better where it is virtual; a measurement repeats within 10 %.
_UNKNOWN_DOUBT = 0.35
_NAMED_DOUBT = 0.3
_MEASURED_DOUBT = 0.1


class Host(Record):
    """A processor that issues operators, compared with the host of the H200's profile."""

    speed: Positive
    """How many times as fast."""
    source: Text = ""
    """Where the figure is from."""

    @property
    def doubt(self) -> float:
        """How far off the speed may be: one standard deviation, relative."""
        if not self.source:
            return _UNKNOWN_DOUBT
        if self is PROFILED_HOST:
            return 0.0
        return _MEASURED_DOUBT if self.source.startswith("measured") else _NAMED_DOUBT


UNKNOWN_HOST = Host(speed=1.0)
PROFILED_HOST = Host(speed=1.0, source="measured together with the kernels")
"""Of a profile that the user measured: its host is the one that is meant."""


def host_names() -> tuple[str, ...]:
    """The names of the hosts that a cluster's file may name."""
    return tuple(_built_in())


def load_host(host: str | float | None) -> Host:
    """A host by its name, or by its speed as ``paceline measure host`` found it.

    Args:
        host: One of :func:`host_names`, how many times as fast it is as the host of the H200's
            profile, or None if nothing is known.
    """
    if host is None:
        return UNKNOWN_HOST
    if not isinstance(host, str):
        return Host(speed=host, source="measured or given as a number")
    known = _built_in()
    if host not in known:
        raise ValueError(
            f"there is no host '{host}': {suggestion(host, known)}; or write its speed as a number,"
            " which 'paceline measure host' finds"
        )
    return known[host]


@cache
def _built_in() -> Mapping[str, Host]:
    text = resources.files("paceline.cluster").joinpath("hosts.toml").read_text("utf-8")
    tables = tomllib.loads(text)
    return {name: Host.from_table(table, origin="hosts.toml") for name, table in tables.items()}
