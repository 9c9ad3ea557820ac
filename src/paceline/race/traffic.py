"""How many bytes left a node for the others, counted where they leave."""

from __future__ import annotations

import os

import psutil

from paceline.teams.emulated import link_of_node


def bytes_sent_from_node(node: int) -> int:
    """Bytes that this worker's node sent so far: the interface's count, or the emulated link's."""
    link = link_of_node(os.environ, node)
    if link is not None:
        return link.bytes_sent()
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "eth0")
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    if interface not in counters:
        raise ValueError(f"there is no network interface {interface!r} to count the bytes of")
    return int(counters[interface].bytes_sent)
