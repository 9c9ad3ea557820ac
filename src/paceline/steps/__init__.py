"""What one training step consists of: a :class:`Step`, and its capture on fake tensors."""

from __future__ import annotations

from paceline.steps.capture import (
    Capture,
    GradientReady,
    StepMemory,
    capture_step,
    capture_with_flow,
)
from paceline.steps.kernel import Kernel, Operand
from paceline.steps.recorder import Access, Call, Flow
from paceline.steps.source import load_step, zoo_step
from paceline.steps.step import Step

__all__ = [
    "Access",
    "Call",
    "Capture",
    "Flow",
    "GradientReady",
    "Kernel",
    "Operand",
    "Step",
    "StepMemory",
    "capture_step",
    "capture_with_flow",
    "load_step",
    "zoo_step",
]
