"""Optimizers that evaluate the loss themselves: captured as they really run, and rehearsed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from paceline.rehearse import predict
from paceline.rehearse.record import record
from paceline.steps import Step, capture_step, load_step
from paceline.steps.canonical import op_name
from paceline.steps.file import capture_from_dict, capture_to_dict
from paceline.teams.journal import Collective, Wait

BATCH = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
TARGETS = torch.arange(16) % 3


class Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The names of all operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace not in ("prim", "profiler"):
            self.names.append(op_name(func))
        return func(*args, **(kwargs or {}))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def real_ops(settings: dict[str, Any]) -> tuple[list[str], int]:
    """What one step does outside its closure, for real, once its history is full."""
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), **settings)
    num_evaluations = 0

    def closure() -> torch.Tensor:
        nonlocal num_evaluations
        num_evaluations += 1
        with _disable_current_modes(), torch.enable_grad():
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(BATCH), TARGETS)
            torch.autograd.backward(loss)
            return loss.detach()

    for _ in range(12):
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    num_evaluations = 0
    with Ops() as ops:
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return ops.names, num_evaluations


@pytest.mark.parametrize(
    "settings",
    [
        {"max_iter": 3, "history_size": 4, "lr": 0.1},
        {"max_iter": 1, "history_size": 7, "lr": 0.1},
    ],
    ids=str,
)
def test_a_captured_step_does_what_a_real_one_does(settings: dict[str, Any]) -> None:
    names, num_evaluations = real_ops(settings)
    step = Step(
        model=network(),
        inputs=BATCH,
        targets=TARGETS,
        loss=functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.LBFGS(parameters, **settings),
    )
    capture = capture_step(step)
    own = [call.op for call in capture.calls if call.phase == "optimizer"]
    assert Counter(own) == Counter(names)
    assert len(capture.evaluations) == num_evaluations == settings["max_iter"]
    passes = [call for call in capture.calls if call.phase != "optimizer"]
    assert len(passes) % num_evaluations == 0
    for start in capture.evaluations:
        assert capture.calls[start].phase == "forward"
    num_values = sum(p.numel() for p in step.model.parameters())
    # A direction and a change of gradient for each remembered step.
    assert capture.memory.optimizer_bytes >= 2 * settings["history_size"] * 4 * num_values
    assert capture_from_dict(capture_to_dict(capture)) == capture


def test_a_line_search_is_rehearsed() -> None:
    step = load_step("mlp", batch=64, optimizer="lbfgs")
    capture = capture_step(step)
    assert len(capture.evaluations) > 1, "a line search looks at more than one point"
    recording = record(step, "sync", (2, 2), capture=capture)
    events = recording.workers[2][0].steps[-1]
    reduced = [e.num_bytes for e in events if isinstance(e, Collective)]
    gradients_bytes = sum(gradient.num_bytes for gradient in capture.gradients)
    # Per evaluation the gradients (with a flag each, and one more), and the loss.
    num_flags = len(capture.gradients) + 1
    assert reduced == [gradients_bytes + 4 * num_flags, 8] * len(capture.evaluations)
    assert sum(isinstance(e, Wait) for e in events) == len(reduced)
    plain = load_step("mlp", batch=64)
    ratio = predict(step, device="h200").step_s / predict(plain, device="h200").step_s
    assert ratio > len(capture.evaluations)
