"""Clusters as TOML: reading, with errors that name the key, and writing."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import BeforeValidator

from paceline.cluster.cluster import Cluster
from paceline.cluster.device import Device
from paceline.cluster.devices import Devices, device_names, load_device
from paceline.cluster.link import Link
from paceline.cluster.node import Node
from paceline.cluster.preset import preset_name, preset_names, preset_text
from paceline.reading import read_bytes
from paceline.suggestion import suggestion


def _share_by_default(link: Any) -> Any:
    """A node's link to the network is one card, unless the file says otherwise."""
    return {"shared": True} | link if isinstance(link, dict) else link


_MOST_BYTES = 4 << 20


class _ForAllNodes(Devices):
    """What a cluster's file says once for all its nodes."""

    between: Annotated[Link | None, BeforeValidator(_share_by_default)] = None


def load_cluster(name_or_path: str | Path) -> Cluster:
    """A built-in cluster by its name, or one from a TOML file.

    Args:
        name_or_path: A name that ``paceline cluster list`` shows, or the path of a file. A ``Path``
            is always a file; a string is a built-in name if there is one, and a file otherwise.

    Raises:
        ValueError: There is no such cluster or file, or the file has a mistake. The message names
            the file and the key, and says what to write.
    """
    path = Path(name_or_path)
    if isinstance(name_or_path, str):
        if preset := preset_name(name_or_path):
            return parse_cluster(preset_text(preset), f"preset {preset}")
        if path.name == name_or_path and not path.suffix and not path.exists():
            known = suggestion(name_or_path, preset_names())
            raise ValueError(f"there is no cluster '{name_or_path}': {known}")
    if not os.path.lexists(path):
        raise ValueError(
            f"{path}: there is no such file; write the path of a TOML file, or a name that"
            " 'paceline cluster list' shows"
        )
    try:
        text = read_bytes(path, most_bytes=_MOST_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: a cluster's file has to be TOML text in UTF-8") from None
    return parse_cluster(text, str(path))


def parse_cluster(text: str, origin: str) -> Cluster:
    """The cluster that a TOML text describes.

    Args:
        text: The text of a cluster's file.
        origin: What errors begin with: the file's name.
    """
    try:
        return _parse(text, origin)
    except RecursionError:
        raise ValueError(f"{origin}: its tables or lists are nested too deeply") from None


def _parse(text: str, origin: str) -> Cluster:
    try:
        table = tomllib.loads(text)
    except ValueError as problem:  # a number of thousands of digits is not a TOMLDecodeError
        raise ValueError(f"{origin}: is not valid TOML: {problem}") from None
    shared_keys = _ForAllNodes.table_keys()
    for key in table:
        known = [*Cluster.table_keys(), *shared_keys]
        if key not in known:
            raise ValueError(f"{origin}: {key} is not a known key: {suggestion(key, known)}")
    shared = _ForAllNodes.from_table(
        {key: table.pop(key) for key in shared_keys if key in table}, origin=origin
    )
    if isinstance(table.get("node"), list):
        table["node"] = [
            _complete(node, shared, f"{origin}: node[{index}]")
            for index, node in enumerate(table["node"])
        ]
    return Cluster.from_table(table, origin=origin)


def dump_cluster(cluster: Cluster) -> str:
    """A TOML text that :func:`parse_cluster` reads as an equal cluster.

    Args:
        cluster: The cluster to write.
    """
    devices = {node.device.name: node.device for node in cluster.node_kinds}
    own = {
        name: device.to_table(*(set(Device.model_fields) - {"name"}))
        for name, device in devices.items()
        if name not in device_names() or load_device(name) != device
    }
    table = cluster.to_table("name", "description") | ({"device": own} if own else {})
    return tomli_w.dumps(table | {"node": [_node_table(node) for node in cluster.node_kinds]})


def _complete(node: Any, shared: _ForAllNodes, place: str) -> Any:
    """A node's table with its device, and with what the file says elsewhere or leaves out."""
    if not isinstance(node, dict):
        return node
    device = node.get("device")
    if "between" not in node and shared.between is None:
        raise ValueError(
            f"{place}.between is missing: write [between] once, or [node.between] here"
        )
    return (
        {"name": f"{node.get('workers')}x{device}", "between": shared.between}
        | node
        | ({"between": _share_by_default(node["between"])} if "between" in node else {})
        | ({"device": _device(device, shared.device, place)} if "device" in node else {})
    )


def _device(name: Any, own: Mapping[str, Device], place: str) -> Device:
    if not isinstance(name, str):
        raise ValueError(f"{place}.device has to be a device's name in quotes, not {name!r}")
    if name in own:
        return own[name]
    if name in device_names():
        return load_device(name)
    raise ValueError(
        f"{place}.device = {name!r} is neither in this file nor built in:"
        f" {suggestion(name, (*own, *device_names()))}"
    )


def _node_table(node: Node) -> dict[str, Any]:
    own = ("name", "count", "workers_per_node", "price_per_hour", "host", "source")
    return node.to_table(*own, "slowdown", "jitter", "node_jitter") | {
        "device": node.device.name,
        "inside": _link_table(node.inside),
        "between": _link_table(node.between),
    }


def _link_table(link: Link) -> dict[str, Any]:
    # The default of ``shared`` is not the same for both links of a node.
    return link.to_table(*Link.model_fields) | {"shared": link.shared}
