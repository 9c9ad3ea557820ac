"""Predict a training step."""

from __future__ import annotations

from pathlib import Path

from paceline.cluster.device import Device
from paceline.kernels.library import load_kernel_model
from paceline.kernels.model import KernelModel
from paceline.rehearse.compute import compute_cost
from paceline.rehearse.prediction import Prediction
from paceline.steps import Capture, Step, capture_step


def predict(
    step: Step | Capture,
    *,
    device: str | Device = "h200",
    model: KernelModel | Path | None = None,
) -> Prediction:
    """What one worker's step costs on a device: how long, what limits it, does it fit.

    ``device`` is a built-in device's name or a :class:`~paceline.Device`; ``model`` is a kernel
    model, or a file that `paceline fit` wrote, in place of what comes with paceline.
    """
    capture = step if isinstance(step, Capture) else capture_step(step)
    if not isinstance(model, KernelModel):
        model = load_kernel_model(device, model=model)
    cost = compute_cost(capture, model)
    line = cost.timeline
    return Prediction(
        model=capture.name,
        device=model.device.name,
        nodes=1,
        workers=1,
        batch=capture.batch,
        precision=capture.precision,
        strategy="none",
        step_s=line.step_s,
        compute_s=line.device_s,
        exposed_communication_s=0.0,
        host_s=line.step_s - line.device_s,
        host_issue_s=line.host_s,
        throughput_per_s=capture.batch / line.step_s,
        scaling_efficiency=1.0,
        memory_bytes=cost.memory_bytes,
        memory_limit_bytes=model.device.memory_bytes,
        fits=cost.memory_bytes <= model.device.memory_bytes,
        bottleneck=cost.bottleneck,
        method=cost.method,
        extrapolated=model.is_carried,
        uncertainty=cost.uncertainty,
        warnings=cost.warnings,
    )
