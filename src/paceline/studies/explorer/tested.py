"""How far off predictions of a kind were when they were tested; from docs/evidence."""

from __future__ import annotations

from paceline.cluster import Cluster
from paceline.kernels.model import KernelModel
from paceline.rehearse.summarise import MEASURED_LINK_UNCERTAINTY, link_uncertainty

# Mean errors, as docs/evidence/index.md tells them; a test compares the two.
MEASURED_DEVICE = "1.9 %"
HOST_LIMITED = "14.9 %"
CPU_DEVICE = "8.8 %"
CARRIED_DEVICE = "9.5 %"
LAB_STEPS = "5.2 %"
PUBLISHED_SCALING = "0.014"
OTHER_PUBLISHED_SCALING = "0.040"


def tested_error(kernel_model: KernelModel, cluster: Cluster) -> list[str]:
    """Sentences on the tested error of such a device and of such links.

    Args:
        kernel_model: The device's.
        cluster: Its links were measured, or are those of a data sheet.
    """
    return [_device(kernel_model), _links(cluster)]


def _device(kernel_model: KernelModel) -> str:
    name = kernel_model.device.name
    if kernel_model.is_carried:
        return (
            f"The {name} was not measured: steps of such a device, an RTX 3090, were off by "
            f"{CARRIED_DEVICE} on average when tested."
        )
    if kernel_model.fitted is not None and kernel_model.fitted.facts.get("device_type") == "cpu":
        return f"Steps on a CPU that was measured were off by {CPU_DEVICE} on average when tested."
    return (
        f"Steps on one {name}, which was measured, were off by {MEASURED_DEVICE} on average when "
        f"tested, and by {HOST_LIMITED} where Python limits them."
    )


def _links(cluster: Cluster) -> str:
    if link_uncertainty(cluster) == MEASURED_LINK_UNCERTAINTY:
        return (
            "With measured links and workers, strategies' steps in the lab were off by "
            f"{LAB_STEPS} on average."
        )
    return (
        "The links are those of data sheets: published scaling efficiency was off by "
        f"{PUBLISHED_SCALING} on average for PyTorch's DDP and by {OTHER_PUBLISHED_SCALING} over "
        "all libraries and input pipelines."
    )
