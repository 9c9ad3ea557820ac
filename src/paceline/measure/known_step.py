"""A step that really runs, with what a prediction says it takes: workers are compared by it."""

from __future__ import annotations

import torch

from paceline.kernels.library import load_kernel_model
from paceline.measure.real_step import training_loop
from paceline.measure.workers import KnownStep
from paceline.rehearse.compute import compute_cost
from paceline.steps import Step, capture_step


def known_step(step: Step, device: str) -> KnownStep:
    """A step that runs here, and how long it takes by the profile of a device.

    Args:
        step: A step whose model and batch are on this machine's device.
        device: The name of the device whose profile says how long the step takes.
    """
    cost = compute_cost(capture_step(step), load_kernel_model(device))
    train = training_loop(step)

    def run() -> None:
        train()
        if next(step.model.parameters()).is_cuda:
            torch.cuda.synchronize()

    return KnownStep(run=run, expected_s=cost.timeline.step_s)
