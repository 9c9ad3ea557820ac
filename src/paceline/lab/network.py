"""The emulated network of one lab, as the lab sees it.

The kernel work is done by :mod:`paceline.lab.namespaces` in a process of its own: it forks, and a
fork in a process with threads (torch's, a progress bar's) may hang forever.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from paceline.lab import processes
from paceline.lab.signals import signals_later

INTERFACE = "eth0"
SWITCH_ADDRESS = "10.0.99.1"
"""Of a machine beside the nodes, for what must outlive them."""
_TIMEOUT_S = 60.0


def node_address(index: int) -> str:
    """The address of a node.

    torchrun's rendezvous orders nodes by address *as text*, so every number has three digits.
    """
    return f"10.0.{100 + index // 150}.{101 + index % 150}"


class Network:
    """The namespaces of one lab; a context manager that removes them."""

    def __init__(self, lab_name: str, rates_bytes_per_s: Sequence[float]) -> None:
        self._lab_name = lab_name
        self._switch = f"{lab_name}-switch"
        self._rates = tuple(rates_bytes_per_s)
        self.namespaces = tuple(f"{lab_name}-node{i}" for i in range(len(self._rates)))

    def __enter__(self) -> Self:
        nodes = [
            {"namespace": namespace, "address": node_address(index), "rate_bytes_per_s": rate}
            for index, (namespace, rate) in enumerate(
                zip(self.namespaces, self._rates, strict=True)
            )
        ]
        try:
            _call(
                "build",
                {
                    "switch": self._switch,
                    "switch_address": SWITCH_ADDRESS,
                    "interface": INTERFACE,
                    "nodes": nodes,
                },
                # If this process dies meanwhile, the next lab must not sweep too early.
                environment={processes.ENVIRONMENT_VARIABLE: self._lab_name},
            )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def set_rates(self, rates_bytes_per_s: Mapping[int, float]) -> None:
        """Give the links of some nodes another rate, while they carry traffic.

        Args:
            rates_bytes_per_s: The new rate of each node, by its index.
        """
        nodes = [
            {"index": index, "namespace": self.namespaces[index], "rate_bytes_per_s": rate}
            for index, rate in rates_bytes_per_s.items()
        ]
        _call("reshape", {"switch": self._switch, "interface": INTERFACE, "nodes": nodes})

    @property
    def switch(self) -> str:
        """The namespace that all nodes' links lead to."""
        return self._switch

    def connect(self, node: int, *, is_up: bool) -> None:
        """Take a node's link down, or up again.

        Args:
            node: Whose link, by its index.
            is_up: Whether it carries anything from now on.
        """
        _call("connect", {"switch": self._switch, "node": node, "is_up": is_up})

    def close(self) -> None:
        """End the lab's processes and remove the namespaces, with all that is in them."""
        with signals_later():
            processes.end_processes(self._lab_name)
            _call("remove", {"namespaces": [*self.namespaces, self._switch]})


def sweep() -> None:
    """Remove the namespaces, and what runs in them, of labs whose owner died."""
    _call("sweep", {})


def can_emulate() -> bool:
    """Whether this process may create namespaces here."""
    try:
        _call("probe", {})
    except OSError:
        return False
    return True


def _call(
    action: str, arguments: dict[str, Any], environment: Mapping[str, str] | None = None
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "paceline.lab.namespaces", action, json.dumps(arguments)],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        # Ctrl-C must not interrupt building or removing half-way.
        start_new_session=True,
    )
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no reason given"
        raise OSError(f"the lab's network could not {action}: {reason}")
