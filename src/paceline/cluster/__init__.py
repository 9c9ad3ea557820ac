"""What a cluster is: devices, links and nodes; built-in clusters; TOML files."""

from paceline.cluster.cluster import Cluster
from paceline.cluster.device import Device, Precision
from paceline.cluster.devices import device_names, load_device
from paceline.cluster.file import dump_cluster, load_cluster, parse_cluster
from paceline.cluster.host import Host, host_names, load_host
from paceline.cluster.link import Link
from paceline.cluster.node import Node
from paceline.cluster.preset import preset_names
from paceline.cluster.price import Price, cheapest_price

__all__ = [
    "Cluster",
    "Device",
    "Host",
    "Link",
    "Node",
    "Precision",
    "Price",
    "cheapest_price",
    "device_names",
    "dump_cluster",
    "host_names",
    "load_cluster",
    "load_device",
    "load_host",
    "parse_cluster",
    "preset_names",
]
