"""What issuing operators costs the host: bare dispatch by operator, and real steps to fit to."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from paceline.cluster.device import Precision
from paceline.kernels.family import bytes_of
from paceline.kernels.host import dispatch_name
from paceline.measure.real_step import measure_step
from paceline.measure.runner import Run
from paceline.measure.timer import NUM_ISSUED, Timer, issue_s
from paceline.steps import Kernel, zoo_step
from paceline.zoo import model_names

_BUSY_NAMES = ("vgg16", "resnet18", "resnet50", "mobilenet-v2", "convnext-t", "vit-b16")
_BUSY_BATCH = 64
# Seconds per step on a CPU: they tell nothing about the host's pace.
_LARGE = ("vgg16", "resnet152", "vit-b16", "gpt2", "gpt2-medium", "bert-base")


def measure_dispatch(
    kernels: Iterable[Kernel], timer: Timer
) -> tuple[dict[str, Any], dict[str, str]]:
    """Seconds per bare call of each operator, from its smallest kernel, and per listed tensor.

    Also returns what went wrong, by operator. Those operators are left out; the median is assumed
    for them.
    """
    smallest: dict[str, Kernel] = {}
    for kernel in kernels:
        # A CPU's call computes as well: of large kernels that is most of its time.
        name = kernel.op if timer.device.type == "cpu" else dispatch_name(kernel.op, (kernel,))
        known = smallest.get(name)
        if known is None or bytes_of(kernel) < bytes_of(known):
            smallest[name] = kernel
    dispatch_s: dict[str, float] = {}
    failed: dict[str, str] = {}
    for op, kernel in sorted(smallest.items()):
        try:
            dispatch_s[op] = timer.issue_s(kernel)
        except (RuntimeError, TypeError, IndexError) as problem:
            failed[op] = f"called {NUM_ISSUED} times in a row, {problem}"
    for op, run in views(timer.device).items():
        dispatch_s[op] = issue_s(run, timer.device)
    facts = {
        "dispatch_s": _under_cuda_names(dispatch_s),
        "tensor_s": _listed_tensor_s(timer.device),
        "recurrent_s": recurrent_s(timer.device),
    }
    return facts, failed


def measure_small_steps(
    device: str, precisions: Iterable[Precision], report: Callable[[int, int], None]
) -> list[dict[str, Any]]:
    """Real steps of the zoo, so small that on a GPU the host is what takes time."""
    names = [name for name in model_names() if device != "cpu" or name not in _LARGE]
    return _measure_steps(names, 2, device, precisions, report)


def measure_busy_steps(
    device: str, precisions: Iterable[Precision], report: Callable[[int, int], None]
) -> list[dict[str, Any]]:
    """Real steps of the zoo that keep a GPU busy, most of them."""
    return _measure_steps(_BUSY_NAMES, _BUSY_BATCH, device, precisions, report)


def _measure_steps(
    names: Iterable[str],
    batch: int,
    device: str,
    precisions: Iterable[Precision],
    report: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    cases = [(name, precision) for name in names for precision in precisions]
    found = []
    for index, (name, precision) in enumerate(cases):
        report(index, len(cases))
        step = zoo_step(name, batch=batch, precision=precision, device=device)
        try:
            measured = measure_step(step, rounds=3, target_s=0.1)
        except torch.OutOfMemoryError:
            continue  # a small GPU: the other steps tell enough
        found.append(
            {
                "model": name,
                "batch": batch,
                "precision": precision,
                "step_s": measured.step_s,
                "host_s": measured.host_s,
                "busy_s": measured.busy_s,
                "spread": round(measured.spread, 4),
            }
        )
        del step
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    return found


def views(device: torch.device) -> dict[str, Run]:
    """Operators that start no kernel and still cost the host."""
    aten = torch.ops.aten
    matrix = torch.rand(8, 8, device=device)
    cube = torch.rand(4, 4, 4, device=device)
    return {
        "view": lambda: aten.view.default(matrix, [64]),
        "_unsafe_view": lambda: aten._unsafe_view.default(matrix, [64]),
        "t": lambda: aten.t.default(matrix),
        "detach": lambda: aten.detach.default(matrix),
        "transpose.int": lambda: aten.transpose.int(cube, 0, 1),
        "permute": lambda: aten.permute.default(cube, [2, 0, 1]),
        "expand": lambda: aten.expand.default(matrix[:1], [8, 8]),
        "unsqueeze": lambda: aten.unsqueeze.default(matrix, 0),
        "squeeze.dim": lambda: aten.squeeze.dim(matrix, 0),
        "select.int": lambda: aten.select.int(matrix, 0, 1),
        "slice.Tensor": lambda: aten.slice.Tensor(matrix, 0, 0, 4),
        "split.Tensor": lambda: aten.split.Tensor(matrix, 2),
        "unbind.int": lambda: aten.unbind.int(cube),
        "empty.memory_format": lambda: aten.empty.memory_format([8, 8], device=device),
        "as_strided": lambda: aten.as_strided.default(matrix, [8], [1]),
    }


def _listed_tensor_s(device: torch.device) -> float:
    few, many = 8, 208
    times = []
    for count in (few, many):
        lists = [[torch.rand(8, device=device) for _ in range(count)] for _ in range(2)]
        times.append(issue_s(partial(torch.ops.aten._foreach_add_.List, *lists), device))
    return max(times[1] - times[0], 0.0) / (many - few)


def recurrent_s(device: torch.device) -> float:
    """Seconds per step of a recurrent layer: the mean of an LSTM's and a GRU's."""
    if device.type == "cpu":
        return 0.0  # computed where it is issued
    short, long = 16, 144
    found = []
    for make in (nn.LSTM, nn.GRU):
        layers = make(256, 512).to(device)
        times = []
        for length in (short, long):
            inputs = torch.rand(length, 32, 256, device=device)
            times.append(issue_s(partial(layers, inputs), device))
        found.append(max(times[1] - times[0], 0.0) / (long - short))
    return sum(found) / len(found)


def _under_cuda_names(dispatch_s: Mapping[str, float]) -> dict[str, float]:
    """Add the names under which a capture on the CPU knows the kernels that have our own names."""
    found = dict(dispatch_s)
    for own, names in (
        ("attention", ("_scaled_dot_product_flash_attention_for_cpu",)),
        ("attention_backward", ("_scaled_dot_product_flash_attention_for_cpu_backward",)),
        ("recurrent", ("_cudnn_rnn",)),
        ("recurrent_backward", ("_cudnn_rnn_backward",)),
        ("batch_norm", ("native_batch_norm",)),
        ("batch_norm_backward", ("native_batch_norm_backward",)),
    ):
        for name in names:
            if own in found:
                found[name] = found[own]
    halves = ("convolution_backward_data", "convolution_backward_weight")
    if all(half in found for half in halves):
        found["convolution_backward"] = sum(found[half] for half in halves)
    return found
