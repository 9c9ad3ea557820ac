"""Where a step is predicted: the cluster as it was asked for, and its devices' kernel models."""

from __future__ import annotations

from pathlib import Path

from paceline.cluster import Cluster, load_cluster
from paceline.cluster.device import Device
from paceline.cluster.devices import device_names, load_device
from paceline.kernels.library import load_kernel_model
from paceline.kernels.model import KernelModel


def find_cluster(
    cluster: str | Path | Cluster | None,
    *,
    device: str | Device | None,
    nodes: int | None,
    workers_per_node: int | None,
) -> Cluster | None:
    """The cluster with other numbers and another device where they are given; None for none."""
    if cluster is None:
        if not nodes is workers_per_node is None:
            raise ValueError("Nodes and workers are a cluster's; say which one.")
        return None
    chosen = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    if workers_per_node is not None:
        chosen = chosen.with_workers_per_node(workers_per_node)
    if nodes is not None:
        chosen = chosen.with_nodes(nodes)
    if device is None:
        return chosen
    own = load_device(device) if isinstance(device, str) else device
    return chosen.replace(node_kinds=tuple(node.replace(device=own) for node in chosen.node_kinds))


def find_kernel_models(
    cluster: Cluster | None,
    device: str | Device | None,
    kernel_model: KernelModel | Path | None,
) -> dict[str, KernelModel]:
    """The kernel model of each device of the cluster, or of the one that was asked for."""
    if isinstance(kernel_model, KernelModel):
        kinds = cluster.node_kinds if cluster else ()
        names = {node.device.name for node in kinds} or {kernel_model.device.name}
        return dict.fromkeys(sorted(names), kernel_model)
    if cluster is None:
        fallback = "h200" if kernel_model is None else ""
        return {"": load_kernel_model(_built_in(device or fallback), model=kernel_model)}
    if kernel_model is not None and device is None:
        # Who measured their own kernels means them, whatever the cluster's file calls its devices.
        own = load_kernel_model("", model=kernel_model)
        return {node.device.name: own for node in cluster.node_kinds}
    devices = {node.device.name: node.device for node in cluster.node_kinds}
    return {
        name: load_kernel_model(_built_in(own), model=kernel_model)
        for name, own in sorted(devices.items())
    }


def _built_in(device: str | Device) -> str | Device:
    """A preset's device is the built-in one of its name, which may have a profile."""
    if isinstance(device, Device) and device.name in device_names():
        return device.name if load_device(device.name) == device else device
    return device
