"""Which device a profile is of, and its peak figures: a datasheet's, or the best it has shown."""

from __future__ import annotations

import re
from itertools import pairwise

from paceline.cluster.device import Device, Precision
from paceline.cluster.devices import device_names, load_device
from paceline.kernels.family import bytes_of, family_of, flop_of, multiplies
from paceline.kernels.profile import Profile

_PRECISION_OF_DTYPE: dict[str, Precision] = {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}


def device_of(profile: Profile) -> Device:
    """The built-in device of that name if there is one; else one made of the measurements."""
    name = str(profile.facts.get("device_name", "unknown"))
    built_in = _built_in(name, int(profile.facts.get("memory_bytes", 0)))
    return built_in if built_in is not None else _observed(name, profile)


def _built_in(name: str, memory_bytes: int) -> Device | None:
    """ "NVIDIA H200" is h200; of two sizes (A100 40 GB and 80 GB) the one with nearest memory."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    pairs = [first + second for first, second in pairwise(words)]  # "RTX 3090"
    known = {*words, *pairs}
    found = [
        (device, parts)
        for device in map(load_device, device_names())
        if device.name != "cpu-core" and (parts := _parts(device.name)) <= known
    ]
    # "A100 80GB PCIe" is an a100 too, and more than that.
    best = max((len(parts) for _, parts in found), default=0)
    closest = [device for device, parts in found if len(parts) == best]
    return min(closest, key=lambda each: abs(each.memory_bytes - memory_bytes), default=None)


def _parts(name: str) -> set[str]:
    """What a driver's name must have: ``a100-pcie`` both parts, ``a100-40gb`` the first."""
    return {part for part in name.split("-") if not re.fullmatch(r"\d+gb", part)}


def _observed(name: str, profile: Profile) -> Device:
    flops: dict[Precision, float] = {}
    bandwidth = 0.0
    for kernel, timing in profile.measured().items():
        assert timing.seconds is not None
        if multiplies(family_of(kernel)) and kernel.operands:
            dtype = kernel.operands[0].dtype
            precision = "tf32" if kernel.math == "tf32" else _PRECISION_OF_DTYPE.get(dtype, "fp32")
            flops[precision] = max(flops.get(precision, 0.0), flop_of(kernel) / timing.seconds)
        # Small tensors come from the cache, whose speed is not the memory's.
        elif bytes_of(kernel) > 32e6:
            bandwidth = max(bandwidth, bytes_of(kernel) / timing.seconds)
    if not flops or not bandwidth:
        raise ValueError(
            "The profile has too few kernels to know its device's speed; measure with a larger "
            "--budget."
        )
    return Device(
        name=name,
        memory_bytes=int(profile.facts.get("memory_bytes", 16e9)),
        memory_bandwidth_bytes_per_s=bandwidth,
        flops=flops,
        source="the fastest kernels of the profile",
    )
