"""A profile of a made-up machine whose kernels follow a law that tests can compute themselves."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from paceline.cluster.devices import load_device
from paceline.kernels import FittedModel, KernelModel, Profile, Timing
from paceline.measure.kernel_fit import fit_profile
from paceline.steps import Kernel, Operand

DEVICE = load_device("h200")
"""What the profile calls "NVIDIA H200"."""


def product(m: int, k: int, n: int, dtype: str = "f32") -> Kernel:
    """A matrix product."""
    left, right, made = (Operand(dtype, shape) for shape in ((m, k), (k, n), (m, n)))
    return Kernel("mm", (left, right), outputs=(made,))


def activation(op: str, numel: int) -> Kernel:
    """Something pointwise."""
    each = Operand("f32", (numel,))
    return Kernel(op, (each,), outputs=(each,))


def law_s(kernel: Kernel) -> float:
    """Seconds: the datasheet's roofline over an efficiency that grows with the kernel."""
    if kernel.op == "mm":
        (m, k), (_, n) = kernel.operands[0].shape, kernel.operands[1].shape
        peak = DEVICE.flops["bf16" if kernel.operands[0].dtype == "bf16" else "fp32"]
        num_bytes = sum(each.num_bytes for each in (*kernel.operands, *kernel.outputs))
        ideal = max(2.0 * m * k * n / peak, num_bytes / DEVICE.memory_bandwidth_bytes_per_s)
        efficiency = 0.8 / (1.0 + math.sqrt(48.0 / min(m, n)))
    else:
        numel = kernel.operands[0].numel
        ideal = max(numel / DEVICE.flops["fp32"], 8 * numel / DEVICE.memory_bandwidth_bytes_per_s)
        efficiency = {"relu": 0.9, "exp": 0.6}[kernel.op] / (1.0 + (2e4 / numel) ** 0.4)
    return (ideal + 2e-6) / efficiency


def some_kernels(seed: int, count: int) -> list[Kernel]:
    """As many products as activations, of every size."""
    rng = random.Random(seed)

    def size(low: int, high: int) -> int:
        return round(low * math.exp(math.log(high / low) * rng.random()))

    products = [
        product(size(16, 4096), size(16, 4096), size(16, 4096), rng.choice(("f32", "bf16")))
        for _ in range(count // 2)
    ]
    others = [activation(rng.choice(("relu", "exp")), size(1000, 1 << 26)) for _ in products]
    return [*products, *others]


@cache
def profile() -> Profile:
    """A thousand kernels, and a few of a family that are too few to learn from."""
    kernels = [*some_kernels(0, 1000), *map(few, range(10))]
    facts = {"device_name": "NVIDIA H200", "device_type": "cuda", "library_bytes": 1000}
    return Profile(
        facts, {k: Timing(1e-3 if k.op == "mean" else law_s(k), 256, ("net",)) for k in kernels}
    )


def few(index: int) -> Kernel:
    """One of ten measured reductions."""
    return Kernel("mean", (Operand("f32", (1000 + index,)),), outputs=(Operand("f32", ()),))


@cache
def fitted() -> FittedModel:
    """The profile, fitted quickly."""
    with one_thread():
        return fit_profile(profile(), num_steps=250)


@contextmanager
def one_thread() -> Iterator[None]:
    """For small networks: two threads that wait for each other on a busy machine take minutes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@cache
def plain_kernel_model() -> KernelModel:
    """What a fit without any steps makes of the profile; how good it is makes no difference."""
    with one_thread():
        plain = fit_profile(profile(), num_steps=20)
    return KernelModel(plain.device, plain, profile().measured())
