"""Devices by name: those of ``devices.toml``, which are built in, and those of any file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Any

from pydantic import BeforeValidator

from paceline.cluster.device import Device
from paceline.cluster.record import BadKeyError, Record, check_keys
from paceline.suggestion import suggestion


def _name_tables(tables: Any) -> Any:
    """Each device's table with its name, which a TOML file gives as the table's key."""
    if not isinstance(tables, Mapping):
        raise ValueError(f"has to be a table of named tables, not {tables!r}")
    known = [key for key in Device.table_keys() if key != "name"]
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            keys = ", ".join(known)
            raise BadKeyError(f"has to be a table with the keys {keys}, not {table!r}", name)
        check_keys(table, known, name)
    return {name: {"name": name} | table for name, table in tables.items()}


class Devices(Record):
    """The devices that a file describes."""

    device: Annotated[Mapping[str, Device], BeforeValidator(_name_tables)] = {}


def device_names() -> tuple[str, ...]:
    """The names of the built-in devices."""
    return tuple(_built_in())


def load_device(name: str) -> Device:
    """A built-in device.

    Args:
        name: One of :func:`device_names`, such as ``"h200"``.
    """
    devices = _built_in()
    if name not in devices:
        raise ValueError(f"there is no device '{name}': {suggestion(name, devices)}")
    return devices[name]


@cache
def _built_in() -> Mapping[str, Device]:
    text = resources.files("paceline.cluster").joinpath("devices.toml").read_text("utf-8")
    return Devices.from_table({"device": tomllib.loads(text)}, origin="devices.toml").device
