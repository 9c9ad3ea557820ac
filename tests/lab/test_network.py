"""The emulated network itself, without jobs on it."""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab_machine import NAMESPACES, interfaces, wait_until
from paceline.cluster import load_cluster
from paceline.lab import lab as lab_module
from paceline.lab.lab import Lab, choose_emulation
from paceline.lab.layout import lay_out
from paceline.lab.network import Network, node_address
from paceline.lab.owner import new_lab_name


@pytest.mark.parametrize("address_of", [node_address, lab_module._loopback_address])
def test_addresses_sort_as_text_in_the_order_of_nodes(address_of: Callable[[int], str]) -> None:
    # torchrun's rendezvous numbers nodes in this order; 10.0.0.10 would come before 10.0.0.9.
    addresses = [address_of(index) for index in range(400)]
    assert sorted(addresses) == addresses
    assert len(set(addresses)) == 400
    for address in addresses:
        ipaddress.IPv4Address(address)


def test_as_root_on_linux_the_kernel_shapes() -> None:
    assert choose_emulation() == "namespaces"
    assert choose_emulation("software") == "software"
    with pytest.raises(ValueError, match="use auto, namespaces or software"):
        choose_emulation("hardware")


# In a process of its own: pyroute2 forks, which a process with torch's threads should not.
SHAPES = """\
import json, sys
from pyroute2 import NetNS

for namespace, interface in (name.split("/") for name in sys.argv[1:]):
    with NetNS(namespace) as inside:
        (link,) = inside.get_links(ifname=interface)
        (queue,) = inside.get_qdiscs(index=link["index"])
        parameters = queue.get_nested("TCA_OPTIONS", "TCA_TBF_PARMS")
        print(json.dumps([queue.get("kind"), parameters["rate"], link.get("mtu"), link["state"]]))
"""


def shapes_of(*interfaces: str) -> list[list[object]]:
    """What the kernel says of each NAMESPACE/INTERFACE: kind and rate of its queue, MTU, state."""
    done = subprocess.run(
        [sys.executable, "-c", SHAPES, *interfaces], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_both_ends_of_every_link_are_shaped() -> None:
    name = new_lab_name()
    before = interfaces()
    with Network(name, [12.5e6, 6.25e6]) as built:
        assert built.namespaces == (f"{name}-node0", f"{name}-node1")
        # Nothing in the machine's own namespace.
        assert interfaces() == before
        assert (
            shapes_of(f"{name}-node0/eth0", f"{name}-switch/port0")
            == [["tbf", 12_500_000, 9000, "up"]] * 2
        )
        assert (
            shapes_of(f"{name}-node1/eth0", f"{name}-switch/port1")
            == [["tbf", 6_250_000, 9000, "up"]] * 2
        )
        built.set_rates({1: 2.5e6})
        assert [
            rate
            for _, rate, _, _ in shapes_of(
                *(f"{name}-node0/eth0", f"{name}-switch/port0"),
                *(f"{name}-node1/eth0", f"{name}-switch/port1"),
            )
        ] == [12_500_000, 12_500_000, 2_500_000, 2_500_000]
    assert list(NAMESPACES.glob(f"{name}*")) == []


def test_removing_ends_what_runs_inside() -> None:
    with Network(new_lab_name(), [1e7]) as built:
        inside = enter(built.namespaces[0], "sleep", "60")
        wait_until(lambda: command_of(inside.pid) == "sleep")
    assert inside.wait(timeout=10) == -signal.SIGKILL


def test_nobody_enters_a_namespace_that_was_removed() -> None:
    name = f"{new_lab_name()}-node0"
    late = enter(name, "true")
    assert late.wait(timeout=20) != 0
    assert not (NAMESPACES / name).exists()


def test_an_error_while_building_leaves_nothing() -> None:
    name = new_lab_name()
    # The kernel takes no rate of zero, which it sees when the switch and a node are there.
    with pytest.raises(OSError, match="network could not build"), Network(name, [1e7, 0.0]):
        pass
    assert list(NAMESPACES.glob(f"{name}*")) == []


def test_a_lab_whose_owner_lives_is_not_swept() -> None:
    with Network(new_lab_name(), [1e7, 1e7]) as built:
        inside = enter(built.namespaces[1], "sleep", "60")
        wait_until(lambda: command_of(inside.pid) == "sleep")
        with Lab(lay_out(nodes=2, workers_per_node="1")):
            pass
        assert all((NAMESPACES / name).exists() for name in built.namespaces)
        assert inside.poll() is None
    inside.wait(timeout=10)


def test_a_link_too_fast_to_emulate() -> None:
    with pytest.raises(ValueError, match=r"up to 10 Gbit/s, and 'dgx-h100' asks for 3200 Gbit/s"):
        Lab(load_cluster("dgx-h100"))


def enter(namespace: str, *command: str) -> subprocess.Popen[bytes]:
    """Start a command in a namespace, as the lab does."""
    parent = str(os.getpid())
    return subprocess.Popen(
        [sys.executable, "-m", "paceline.lab.enter", parent, namespace, *command],
        stderr=subprocess.DEVNULL,
    )


def command_of(pid: int) -> str:
    """The name of the program that a process runs."""
    return Path(f"/proc/{pid}/comm").read_text().strip()
