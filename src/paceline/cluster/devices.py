"""The built-in devices, read from ``devices.toml``, and how a device is read from any file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from paceline.cluster.device import PRECISIONS, Device
from paceline.cluster.table import Table, suggestion
from paceline.cluster.units import parse_bandwidth, parse_size, parse_speed

DEVICE_KEYS = ("memory", "memory_bandwidth", "flops", "source")


def device_names() -> tuple[str, ...]:
    """The names of the built-in devices."""
    return tuple(_built_in())


def load_device(name: str) -> Device:
    """A built-in device by its name."""
    devices = _built_in()
    if name not in devices:
        raise ValueError(f"there is no device '{name}': {suggestion(name, devices)}")
    return devices[name]


def read_device(name: str, table: Table) -> Device:
    """A device from its table, in a cluster's file or in the built-in list."""
    flops = table.table("flops", keys=PRECISIONS)
    if not any(precision in flops for precision in PRECISIONS):
        raise table.error("flops", 'is empty: write at least { fp32 = "19.5 TFLOP/s" }')
    return Device(
        name=name,
        memory_bytes=table.quantity("memory", parse_size, example="80 GB"),
        memory_bandwidth_bytes_per_s=table.quantity(
            "memory_bandwidth", parse_bandwidth, example="900 GB/s"
        ),
        flops={
            precision: flops.quantity(precision, parse_speed, example="19.5 TFLOP/s")
            for precision in PRECISIONS
            if precision in flops
        },
        source=table.text("source", default=""),
    )


@cache
def _built_in() -> Mapping[str, Device]:
    text = resources.files("paceline.cluster").joinpath("devices.toml").read_text("utf-8")
    devices = Table(tomllib.loads(text), origin="devices.toml", keys=())
    return {
        name: read_device(name, devices.table(name, keys=DEVICE_KEYS)) for name in devices.names()
    }
