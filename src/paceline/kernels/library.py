"""The fitted models that come with paceline, and which one is used for a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path

from paceline.cluster.device import Device
from paceline.cluster.devices import device_names, load_device
from paceline.kernels import fitted, profile
from paceline.kernels.fitted import FittedModel, load_model
from paceline.kernels.model import KernelModel
from paceline.kernels.profile import Timing
from paceline.kernels.table import Table, load_table
from paceline.steps.kernel import Kernel

_FOLDER = Path(str(resources.files("paceline.kernels"))) / "profiles"
_CARRIED_FROM = "h200"
"""The profile that is transferred to devices without one."""


def profiled_devices() -> tuple[str, ...]:
    """The names of the devices whose profiles come with paceline."""
    return tuple(
        sorted(path.name.removesuffix(fitted.SUFFIX) for path in _FOLDER.glob(f"*{fitted.SUFFIX}"))
    )


def load_kernel_model(device: str | Device, *, model: Path | None = None) -> KernelModel:
    """The kernel model of a device.

    The same object is returned for the same device and unchanged files; it remembers its answers.

    Args:
        device: The name of a device, or its figures; with ``model``, ``""`` is the model's own.
        model: A file that ``paceline fit`` wrote. Its profile is looked for in the same folder. By
            default, a model that comes with paceline is used: the device's own, or that of another
            device, transferred.
    """
    files = () if model is None else (model, _profile_of(model))
    changed = tuple(path.stat().st_mtime_ns if path.is_file() else 0 for path in files)
    return _kernel_model(device, model, changed)


@lru_cache(maxsize=16)
def _kernel_model(
    device: str | Device, model: Path | None, _changed: tuple[int, ...]
) -> KernelModel:
    if model is not None:
        own = load_model(model)
        own_profile = _profile_of(model)
        table: Mapping[Kernel, Timing] = load_table(own_profile) if own_profile.is_file() else {}
        wanted = own.device if device in ("", own.device.name) else _device(device)
        return KernelModel(wanted, own, table)
    name = device if isinstance(device, str) else device.name
    if name in profiled_devices():
        built_in = _built_in(name)
        wanted = built_in.device if isinstance(device, str) else device
        return KernelModel(wanted, built_in, built_in_table(name))
    return KernelModel(_device(device), _built_in(_CARRIED_FROM), built_in_table(_CARRIED_FROM))


def _device(device: str | Device) -> Device:
    if isinstance(device, Device):
        return device
    if device not in device_names():
        known = ", ".join(sorted({*device_names(), *profiled_devices()}))
        raise ValueError(
            f"There is no device {device!r}; take one of {known}, or give --flops and "
            "--memory-bandwidth."
        )
    return load_device(device)


def _profile_of(model: Path) -> Path:
    return model.with_name(model.name.removesuffix(fitted.SUFFIX) + profile.SUFFIX)


@lru_cache
def _built_in(name: str) -> FittedModel:
    model = load_model(_FOLDER / f"{name}{fitted.SUFFIX}")
    # The file has the peaks that it was fitted with; what transfers need besides is not in it.
    if name not in device_names():
        return model
    own, facts = model.device, load_device(name)
    if (own.flops, own.memory_bandwidth_bytes_per_s) == (
        facts.flops,
        facts.memory_bandwidth_bytes_per_s,
    ):
        return replace(model, device=facts)
    return model


@lru_cache
def built_in_table(name: str) -> Table:
    """The measured kernels of a profile that comes with paceline."""
    return load_table(built_in_profile(name))


def nearest_profiled(device_type: str) -> str:
    """The profiled device that is most like an unknown "cuda" or "cpu" device."""
    return "cpu" if device_type == "cpu" else _CARRIED_FROM


def model_to_start_from(device_type: str) -> FittedModel:
    """The model that comes with paceline for the device most like an unknown one."""
    return _built_in(nearest_profiled(device_type))


def built_in_profile(name: str) -> Path:
    """The profile of a device that comes with paceline."""
    return _FOLDER / f"{name}{profile.SUFFIX}"
