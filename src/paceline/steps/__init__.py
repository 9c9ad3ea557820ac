"""What one training step consists of: a :class:`Step`, and its capture on fake tensors."""

from __future__ import annotations

from paceline.steps.capture import Capture, GradientReady, StepMemory, capture_step
from paceline.steps.kernel import Kernel, Operand
from paceline.steps.recorder import Call
from paceline.steps.source import load_step, zoo_step
from paceline.steps.step import Step

__all__ = [
    "Call",
    "Capture",
    "GradientReady",
    "Kernel",
    "Operand",
    "Step",
    "StepMemory",
    "capture_step",
    "load_step",
    "zoo_step",
]
