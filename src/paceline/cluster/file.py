"""Clusters as TOML: reading, with errors that name the key, and writing."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path

from paceline.cluster.cluster import Cluster
from paceline.cluster.device import Device
from paceline.cluster.devices import DEVICE_KEYS, device_names, load_device, read_device
from paceline.cluster.link import Link
from paceline.cluster.node import TYPICAL_JITTER, Node
from paceline.cluster.preset import preset_names, preset_text
from paceline.cluster.table import Table, suggestion
from paceline.cluster.units import (
    parse_bandwidth,
    parse_duration,
    parse_size,
    write_bandwidth,
    write_duration,
    write_size,
    write_speed,
)

_CLUSTER_KEYS = ("name", "description", "device", "between", "node")
_NODE_KEYS = (
    "name",
    "count",
    "workers",
    "device",
    "inside",
    "between",
    "price_per_hour",
    "slowdown",
    "jitter",
    "source",
)
_LINK_KEYS = (
    "latency",
    "bandwidth",
    "shared",
    "half_bandwidth_at",
    "interference",
    "lone_interference",
    "busy_factor",
    "lone_busy_factor",
    "source",
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def load_cluster(name_or_path: str | Path) -> Cluster:
    """A built-in cluster by its name, or one from a TOML file.

    A ``Path`` is always a file. A text is a built-in name if there is one, and otherwise a file.
    """
    path = Path(name_or_path)
    if isinstance(name_or_path, str):
        if name_or_path in preset_names():
            return parse_cluster(preset_text(name_or_path), f"preset {name_or_path}")
        if path.name == name_or_path and not path.suffix and not path.exists():
            known = suggestion(name_or_path, preset_names())
            raise ValueError(f"there is no cluster '{name_or_path}': {known}")
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise ValueError(
            f"{path}: there is no such file; write the path of a TOML file, or a name that"
            " 'paceline cluster list' shows"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: a cluster's file has to be TOML text in UTF-8") from None
    except OSError as problem:
        raise ValueError(f"{path}: cannot be read: {problem.strerror}") from None
    return parse_cluster(text, str(path))


def parse_cluster(text: str, origin: str) -> Cluster:
    """The cluster that a TOML text describes; errors begin with ``origin``, the file's name."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ValueError(f"{origin}: is not valid TOML: {problem}") from None
    table = Table(values, origin=origin, keys=_CLUSTER_KEYS)
    own_devices = _read_devices(table)
    return Cluster(
        name=table.text("name"),
        description=table.text("description", default=""),
        node_kinds=tuple(
            _read_node(node, own_devices, table) for node in table.tables("node", keys=_NODE_KEYS)
        ),
    )


def dump_cluster(cluster: Cluster) -> str:
    """A TOML text that :func:`parse_cluster` reads as an equal cluster."""
    return "\n".join(_lines(cluster)) + "\n"


def _read_devices(table: Table) -> dict[str, Device]:
    if "device" not in table:
        return {}
    devices = table.table("device", keys=())
    return {
        name: read_device(name, devices.table(name, keys=DEVICE_KEYS)) for name in devices.names()
    }


def _read_node(node: Table, own_devices: Mapping[str, Device], cluster: Table) -> Node:
    device_name = node.text("device")
    if device_name not in own_devices and device_name not in device_names():
        known = (*own_devices, *device_names())
        raise node.error(
            "device",
            f"= {device_name!r} is neither in this file nor built in:"
            f" {suggestion(device_name, known)}",
        )
    workers = node.count("workers")
    if "between" not in node and "between" not in cluster:
        raise node.error("between", "is missing: write [between] once, or [node.between] here")
    return Node(
        name=node.text("name") if "name" in node else f"{workers}x{device_name}",
        count=node.count("count", default=1),
        workers=workers,
        device=own_devices.get(device_name) or load_device(device_name),
        inside=_read_link(node.table("inside", keys=_LINK_KEYS), shared=False),
        between=_read_link(
            (node if "between" in node else cluster).table("between", keys=_LINK_KEYS), shared=True
        ),
        price_per_hour=node.price("price_per_hour"),
        slowdown=node.number(
            "slowdown",
            default=1.0,
            is_right=lambda value: 0 < value < inf,
            accepted="a number above 0 such as 1.5",
        ),
        jitter=node.number(
            "jitter",
            default=TYPICAL_JITTER,
            is_right=lambda value: 0 <= value < inf,
            accepted="a number from 0 on such as 0.05",
        ),
        source=node.text("source", default=""),
    )


def _read_link(link: Table, *, shared: bool) -> Link:
    return Link(
        latency_s=link.quantity("latency", parse_duration, example="5 us"),
        bandwidth_bytes_per_s=link.quantity("bandwidth", parse_bandwidth, example="10 Gbit/s"),
        shared=link.flag("shared", default=shared),
        half_bytes=(
            link.quantity("half_bandwidth_at", parse_size, example="64 KiB")
            if "half_bandwidth_at" in link
            else 0
        ),
        interference=_read_share(link, "interference"),
        lone_interference=(
            _read_share(link, "lone_interference") if "lone_interference" in link else None
        ),
        busy_factor=_read_factor(link, "busy_factor"),
        lone_busy_factor=(
            _read_factor(link, "lone_busy_factor") if "lone_busy_factor" in link else None
        ),
        source=link.text("source", default=""),
    )


def _read_share(link: Table, key: str) -> float:
    return link.number(
        key,
        default=0.0,
        is_right=lambda value: 0 <= value < 1,
        accepted="a number from 0 to below 1 such as 0.1",
    )


def _read_factor(link: Table, key: str) -> float:
    return link.number(
        key,
        default=1.0,
        is_right=lambda value: 1 <= value < inf,
        accepted="a number from 1 on such as 1.5",
    )


def _lines(cluster: Cluster) -> Iterator[str]:
    yield f"name = {_text(cluster.name)}"
    yield f"description = {_text(cluster.description)}"
    devices = {node.device.name: node.device for node in cluster.node_kinds}
    for name, device in devices.items():
        if name not in device_names() or load_device(name) != device:
            yield from _device_lines(device)
    for node in cluster.node_kinds:
        yield from ("", "[[node]]", f"name = {_text(node.name)}")
        yield f"count = {node.count}"
        yield f"workers = {node.workers_per_node}"
        yield f"device = {_text(node.device.name)}"
        if node.price_per_hour is not None:
            yield f"price_per_hour = {float(node.price_per_hour)!r}"
        if node.slowdown != 1.0:
            yield f"slowdown = {node.slowdown!r}"
        if node.jitter != TYPICAL_JITTER:
            yield f"jitter = {node.jitter!r}"
        yield f"source = {_text(node.source)}"
        yield from _link_lines("node.inside", node.inside)
        yield from _link_lines("node.between", node.between)


def _device_lines(device: Device) -> Iterator[str]:
    flops = ", ".join(
        f"{name} = {_text(write_speed(speed))}" for name, speed in device.flops.items()
    )
    yield from ("", f"[device.{_key(device.name)}]")
    yield f"memory = {_text(write_size(device.memory_bytes))}"
    yield f"memory_bandwidth = {_text(write_bandwidth(device.memory_bandwidth_bytes_per_s))}"
    yield f"flops = {{ {flops} }}"
    yield f"source = {_text(device.source)}"


def _link_lines(header: str, link: Link) -> Iterator[str]:
    yield from ("", f"[{header}]")
    yield f"latency = {_text(write_duration(link.latency_s))}"
    yield f"bandwidth = {_text(write_bandwidth(link.bandwidth_bytes_per_s))}"
    yield f"shared = {'true' if link.shared else 'false'}"
    if link.half_bytes:
        yield f"half_bandwidth_at = {_text(write_size(link.half_bytes))}"
    if link.interference:
        yield f"interference = {link.interference!r}"
    if link.lone_interference is not None:
        yield f"lone_interference = {link.lone_interference!r}"
    if link.busy_factor != 1.0:
        yield f"busy_factor = {link.busy_factor!r}"
    if link.lone_busy_factor is not None:
        yield f"lone_busy_factor = {link.lone_busy_factor!r}"
    yield f"source = {_text(link.source)}"


def _text(value: str) -> str:
    """A TOML basic string: JSON's escapes are among TOML's, except that TOML escapes DEL too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)
