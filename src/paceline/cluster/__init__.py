"""What a cluster is: devices, links and nodes; built-in clusters; TOML files."""

from paceline.cluster.cluster import Cluster
from paceline.cluster.device import Device, Precision
from paceline.cluster.devices import device_names, load_device
from paceline.cluster.file import dump_cluster, load_cluster, parse_cluster
from paceline.cluster.link import Link
from paceline.cluster.node import Node
from paceline.cluster.preset import preset_names

__all__ = [
    "Cluster",
    "Device",
    "Link",
    "Node",
    "Precision",
    "device_names",
    "dump_cluster",
    "load_cluster",
    "load_device",
    "parse_cluster",
    "preset_names",
]
