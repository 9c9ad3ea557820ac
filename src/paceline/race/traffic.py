"""How many bytes left a node for the others, counted where they leave."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.teams.emulated import link_of_node


def bytes_sent_from_node(node: int) -> int:
    """Bytes that this worker's node sent so far: the interface's count, or the emulated link's."""
    link = link_of_node(os.environ, node)
    if link is not None:
        return link.bytes_sent()
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "eth0")
    return _interface_bytes_sent(Path("/proc/self/net/dev").read_text(), interface)


def _interface_bytes_sent(table: str, interface: str) -> int:
    """The transmit counter from the text of /proc/net/dev: the ninth number of a row."""
    for line in table.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            return int(numbers.split()[8])
    raise ValueError(f"there is no network interface {interface!r} to count the bytes of")
