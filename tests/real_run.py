"""A training step that really runs on the CPU, with every operator it dispatches written down."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.steps import Kernel, Step
from paceline.steps.canonical import kernels_of, op_name
from paceline.steps.cuda_like import cuda_like

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Listener(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets every operator run, and notes its name and its kernels."""

    def __init__(self, precision: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.precision = precision
        self.ops: list[str] = []
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace not in ("prim", "profiler"):
            self.ops.append(op_name(func))
            self.kernels += kernels_of(func, args, kwargs or {}, result, precision=self.precision)
        return result


def listen_to_second_step(step: Step) -> Listener:
    """Train two steps on real tensors, and listen to the second: the optimizer has its state."""
    model = step.model.train()
    optimizer = step.make_optimizer(model.parameters())
    dtype = LOW.get(step.precision)
    listener = Listener(step.precision)
    with cuda_like(autocast=dtype is not None):
        for heard in (nullcontext(), listener):
            optimizer.zero_grad()
            with heard:
                with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
                    loss = step.compute_loss(model, step.inputs, step.targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return listener
