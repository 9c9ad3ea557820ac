"""Makes and removes an emulated network: a namespace per node, a bridge, and shaped links.

Nothing is created in the machine's own namespace: the bridge lives in a namespace too (the
"switch"), so that labs cannot collide with each other or with the machine's networks.

    node 0 [eth0] ==veth== [port0]  switch  [port1] ==veth== [eth0] node 1
             tbf ->          <- tbf  [br0]   tbf ->            <- tbf

A token bucket on either end of a veth pair shapes what leaves there, so both directions of a
node's link run at the rate asked for.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from pyroute2 import NetNS, netns

from paceline.lab.owner import is_orphan, new_lab_name
from paceline.lab.processes import kill_all

# Jumbo frames: headers cost 0.7 % instead of 4.3 %, so that the payload rate is the rate asked for.
_MTU_BYTES = 9000
# A token bucket forgives idle time up to its burst. A large burst would let small messages pass
# for nothing; a small one loses time whenever the timer that refills it is late (about 0.1 ms on
# a busy machine).
_LEAST_BURST_BYTES = 18_000
_BURST_S = 250e-6
# Room for every sender's TCP window: the emulated switch delays, it does not drop.
_QUEUE_BYTES = 16 << 20


def build(
    switch: str, switch_address: str, interface: str, nodes: Sequence[Mapping[str, Any]]
) -> None:
    """Create the switch's namespace and one for each node, joined and shaped."""
    netns.create(switch)
    with NetNS(switch) as hub:
        hub.link("set", index=hub.link_lookup(ifname="lo")[0], state="up")
        hub.link("add", ifname="br0", kind="bridge")
        bridge = hub.link_lookup(ifname="br0")[0]
        hub.link("set", index=bridge, mtu=_MTU_BYTES, state="up")
        # What outlives nodes runs here: a machine that none of the nodes' links leads through.
        hub.addr("add", index=bridge, address=switch_address, prefixlen=16)
        for index, node in enumerate(nodes):
            netns.create(node["namespace"])
            port_name = f"port{index}"
            peer = {"ifname": interface, "net_ns_fd": node["namespace"]}
            hub.link("add", ifname=port_name, kind="veth", peer=peer)
            port = hub.link_lookup(ifname=port_name)[0]
            hub.link("set", index=port, master=bridge, mtu=_MTU_BYTES, state="up")
            _shape(hub, port, node["rate_bytes_per_s"])
            _set_up_node(interface, node)


def _set_up_node(interface_name: str, node: Mapping[str, Any]) -> None:
    with NetNS(node["namespace"]) as namespace:
        loopback = namespace.link_lookup(ifname="lo")[0]
        namespace.link("set", index=loopback, state="up")
        interface = namespace.link_lookup(ifname=interface_name)[0]
        namespace.link("set", index=interface, mtu=_MTU_BYTES, state="up")
        namespace.addr("add", index=interface, address=node["address"], prefixlen=16)
        _shape(namespace, interface, node["rate_bytes_per_s"])


def reshape(switch: str, interface: str, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Give the links of some nodes another rate, both directions, while they carry traffic."""
    with NetNS(switch) as hub:
        for node in nodes:
            port = hub.link_lookup(ifname=f"port{node['index']}")[0]
            _shape(hub, port, node["rate_bytes_per_s"], "change")
    for node in nodes:
        with NetNS(node["namespace"]) as namespace:
            link = namespace.link_lookup(ifname=interface)[0]
            _shape(namespace, link, node["rate_bytes_per_s"], "change")


def burst_bytes(rate_bytes_per_s: float) -> int:
    """What a shaped link lets pass at once after a rest."""
    return max(_LEAST_BURST_BYTES, round(rate_bytes_per_s * _BURST_S))


def connect(switch: str, node: int, is_up: bool) -> None:
    """Take a node's link down, or up again."""
    with NetNS(switch) as hub:
        port = hub.link_lookup(ifname=f"port{node}")[0]
        hub.link("set", index=port, state="up" if is_up else "down")


def _shape(namespace: NetNS, interface: int, rate_bytes_per_s: float, action: str = "add") -> None:
    rate = f"{round(rate_bytes_per_s * 8)}bit"
    namespace.tc(
        action, "tbf", interface, rate=rate, burst=burst_bytes(rate_bytes_per_s), limit=_QUEUE_BYTES
    )


def remove(namespaces: Sequence[str]) -> None:
    """End the processes in the namespaces and remove them."""
    for name in namespaces:
        _remove_namespace(name)


def sweep() -> None:
    """Remove the namespaces, and end the processes, of labs whose owner died."""
    remove([name for name in netns.listnetns() if is_orphan(name)])


def probe() -> None:
    """Fail if this process may not create namespaces; leave nothing behind."""
    name = f"{new_lab_name()}-probe"
    netns.create(name)
    _remove_namespace(name)


def _remove_namespace(name: str) -> None:
    kill_all(lambda: _processes_in(name))
    try:
        netns.remove(name)
    except OSError as problem:  # another lab's sweep may have been faster
        if problem.errno != errno.ENOENT:
            raise


def _processes_in(name: str) -> list[int]:
    try:
        namespace = Path(netns.NETNS_RUN_DIR, name).stat()
    except FileNotFoundError:
        return []
    found = []
    for pid in psutil.pids():
        # A zombie has left its namespaces, and a process may end while we look.
        with contextlib.suppress(OSError):
            if os.path.samestat(Path(f"/proc/{pid}/ns/net").stat(), namespace):
                found.append(pid)
    return found


def main() -> None:
    """Do one action with its arguments as JSON."""
    actions: dict[str, Callable[..., None]] = {
        "build": build,
        "reshape": reshape,
        "connect": connect,
        "remove": remove,
        "sweep": sweep,
        "probe": probe,
    }
    actions[sys.argv[1]](**json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
