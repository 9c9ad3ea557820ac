"""``paceline cluster``: lists and shows clusters, and checks files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from paceline.cli.frame import JsonFlag, command, console, new_app, print_json, say
from paceline.cluster import Cluster, Device, Link, load_cluster, preset_names
from paceline.cluster.units import (
    format_bandwidth,
    format_duration,
    format_size,
    format_speed,
)

app = new_app(help_text="The clusters paceline knows, and your own in TOML files.")


@command(app, "list", example="paceline cluster list")
def list_clusters(as_json: JsonFlag = False) -> None:
    """List the built-in clusters."""
    clusters = [load_cluster(name) for name in preset_names()]
    if as_json:
        print_json({"clusters": [cluster.to_dict() for cluster in clusters]})
        return
    table = _table("name", "nodes", "workers", "device", "inside", "between", "USD/hour")
    for cluster in clusters:
        nodes = cluster.node_kinds
        table.add_row(
            cluster.name,
            str(cluster.num_nodes),
            str(cluster.num_workers),
            _each(node.device.name for node in nodes),
            _each(format_bandwidth(node.inside.bandwidth_bytes_per_s) for node in nodes),
            _each(
                format_bandwidth(node.between.bandwidth_bytes_per_s, bits=True) for node in nodes
            ),
            _price(cluster.price_per_hour),
        )
    console().print(table)


@command(
    app,
    "show",
    example="paceline cluster show dgx-h200\npaceline cluster show my-cluster.toml --json",
)
def show(
    cluster: Annotated[
        str, typer.Argument(metavar="NAME_OR_FILE", help="A built-in cluster or a TOML file.")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Show a cluster: its nodes, links and devices, and where the figures are from."""
    loaded = load_cluster(cluster)
    if as_json:
        print_json(loaded.to_dict())
        return
    screen = console()
    screen.print(loaded.name, style="bold", end="", highlight=False)
    screen.print(f": {loaded.description}" if loaded.description else "", highlight=False)
    screen.print(_summary(loaded), highlight=False)
    for table in (_nodes_table(loaded), _links_table(loaded), _devices_table(loaded)):
        screen.print()
        screen.print(table)


@command(app, "check", example="paceline cluster check my-cluster.toml")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file.")],
    as_json: JsonFlag = False,
) -> None:
    """Check a cluster's TOML file; an error names the key and what to write."""
    cluster = load_cluster(file)
    if as_json:
        print_json({"file": str(file), "valid": True, "cluster": cluster.to_dict()})
        return
    say(f"{file} is a valid cluster: {_summary(cluster)}")


def _summary(cluster: Cluster) -> str:
    counts = f"{_count(cluster.num_nodes, 'node')}, {_count(cluster.num_workers, 'worker')}"
    devices = _each((node.device.name for node in cluster.node_kinds), separator=" and ")
    price = cluster.price_per_hour
    return f"{counts}, {devices}, {'price unknown' if price is None else f'{price:.2f} USD/hour'}"


def _nodes_table(cluster: Cluster) -> Table:
    table = _table("node", "count", "workers", "device", "USD/hour", "source")
    for node in cluster.node_kinds:
        price = _price(node.price_per_hour)
        table.add_row(
            node.name,
            str(node.count),
            str(node.workers_per_node),
            node.device.name,
            price,
            node.source,
        )
    return table


def _links_table(cluster: Cluster) -> Table:
    links = [
        (f"{place} {node.name}" if len(cluster.node_kinds) > 1 else place, link, bits)
        for node in cluster.node_kinds
        for place, link, bits in (("inside", node.inside, False), ("between", node.between, True))
    ]
    # Few links need it, and a terminal of 80 characters has no room for it.
    with_half = any(link.half_bytes for _, link, _ in links)
    half = ["half at"] if with_half else []
    table = _table("link", "latency", "bandwidth", *half, "NCCL reaches", "source")
    for name, link, bits in links:
        bandwidth = format_bandwidth(link.bandwidth_bytes_per_s, bits=bits)
        half = [format_size(link.half_bytes) if link.half_bytes else "-"] if with_half else []
        table.add_row(
            name,
            format_duration(link.latency_s),
            bandwidth + _whose(link, bits),
            *half,
            _reached(link),
            link.source,
        )
    return table


def _whose(link: Link, bits: bool) -> str:
    """Who has a link's bandwidth."""
    if not link.shared:
        return "\nper worker"
    if link.worker_share == 1:
        return "\nper node"
    own = format_bandwidth(link.worker_share * link.bandwidth_bytes_per_s, bits=bits)
    return f"\nper node,\n{own}\nper worker"


def _reached(link: Link) -> str:
    if link.reached_bytes_per_s is not None:
        return _each(
            f"{format_bandwidth(rate)} for {count}"
            for count, rate in sorted(link.reached_bytes_per_s.items())
        )
    parts = [] if link.efficiency is None else [f"{link.efficiency:.0%}"]
    if link.switch_bandwidth_bytes_per_s is not None:
        parts.append(f"switch: {format_bandwidth(link.switch_bandwidth_bytes_per_s)}")
    return _each(parts) or "-"


def _devices_table(cluster: Cluster) -> Table:
    table = _table("device", "memory", "reads", "computes (dense)", "source")
    for device in {node.device.name: node.device for node in cluster.node_kinds}.values():
        table.add_row(
            device.name,
            format_size(device.memory_bytes),
            format_bandwidth(device.memory_bandwidth_bytes_per_s),
            _speeds(device),
            device.source,
        )
    return table


def _speeds(device: Device) -> str:
    return "\n".join(f"{name} {format_speed(speed)}" for name, speed in device.flops.items())


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        # Only the source is prose and may break; a number torn from its unit is hard to read.
        table.add_column(column, no_wrap=column != "source")
    return table


def _each(values: Iterable[str], *, separator: str = "\n") -> str:
    """The different values of several kinds of node, in their order."""
    return separator.join(dict.fromkeys(values))


def _price(price_per_hour: float | None) -> str:
    return "-" if price_per_hour is None else f"{price_per_hour:.2f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
