"""``paceline measure links`` in a lab, whose links are known."""

from __future__ import annotations

import json
from pathlib import Path

from lab_machine import run_cli
from paceline.cluster import Node, load_cluster


def test_the_emulated_link_is_found(tmp_path: Path) -> None:
    node = measured_node(tmp_path / "measured.toml")
    if not is_as_emulated(node):  # other tests run beside it, and may disturb one measurement
        node = measured_node(tmp_path / "again.toml")
    assert is_as_emulated(node), node


def is_as_emulated(node: Node) -> bool:
    """Whether it is near 25e6 bytes per second: a busy machine is late with what it sends."""
    between, inside = node.between, node.inside
    is_near = 12e6 < between.bandwidth_bytes_per_s < 35e6
    is_faster_inside = inside.bandwidth_bytes_per_s > 2 * between.bandwidth_bytes_per_s
    return is_near and between.shared and is_faster_inside


def measured_node(out: Path) -> Node:
    """The lab's nodes, as the command finds them."""
    lab = ("lab", "run", "--nodes", "2", "--workers", "2", "--link", "200mbit")
    measure = ("python", "-m", "paceline", "measure", "links", "--out", str(out))
    done = run_cli(
        *lab, "--emulation", "software", "--", *measure, "--largest", "256 KiB", "--json"
    )
    assert done.returncode == 0, done.stderr
    # One worker answers for all; the lab puts its place before each line.
    prefix = "[node0:0] "
    said = json.loads("".join(line.removeprefix(prefix) for line in done.stdout.splitlines()))
    assert {link["place"] for link in said["links"]} == {"inside", "between"}
    cluster = load_cluster(out)
    assert cluster.workers_per_node == (2, 2)
    (node,) = cluster.node_kinds
    return node
