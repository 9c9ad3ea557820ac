"""How many bytes left a node for the others, counted where they leave."""

from __future__ import annotations

import os
import socket

import psutil

from paceline.teams.emulated import link_of_node


def bytes_sent_from_node(node: int) -> int | None:
    """Bytes that this worker's node sent so far: the interface's count, or the emulated link's.

    None where nobody says which interface leads to the other nodes.

    Args:
        node: The place of this worker's node among the nodes.
    """
    link = link_of_node(os.environ, node)
    if link is not None:
        return link.bytes_sent()
    interface = os.environ.get("GLOO_SOCKET_IFNAME") or _interface_towards_first_node()
    if interface is None:
        return None
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    if interface not in counters:
        raise ValueError(f"there is no network interface {interface!r} to count the bytes of")
    return int(counters[interface].bytes_sent)


def own_address(first_node: str) -> str:
    """The address under which the first node sees this one; on the first node, its own.

    Args:
        first_node: The first node's name or address, as torchrun gives it in MASTER_ADDR.
    """
    # Connecting a datagram socket sends nothing: the kernel only looks for the way.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((first_node, 1))
        return str(probe.getsockname()[0])


def _interface_towards_first_node() -> str | None:
    try:
        own = own_address(os.environ["MASTER_ADDR"])
    except (KeyError, OSError):
        return None
    return next(
        (
            name
            for name, addresses in psutil.net_if_addrs().items()
            if own in {each.address for each in addresses}
        ),
        None,
    )
