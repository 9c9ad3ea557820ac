"""What one kernel costs: a measured table, networks fitted to it, and the roofline for the rest."""

from __future__ import annotations

from paceline.kernels.fitted import FittedModel, load_model
from paceline.kernels.library import load_kernel_model, profiled_devices
from paceline.kernels.model import Estimate, KernelModel
from paceline.kernels.profile import Profile, Timing, load_profile

__all__ = [
    "Estimate",
    "FittedModel",
    "KernelModel",
    "Profile",
    "Timing",
    "load_kernel_model",
    "load_model",
    "load_profile",
    "profiled_devices",
]
