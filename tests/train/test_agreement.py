"""Workers that attach different things are told so, all of them, before they wait in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import workloads
from jobs import DEVICE, run_job
from paceline.teams import Workers
from paceline.train import attach


def odd_model(options: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3)).to(DEVICE)


def narrow_model(options: dict[str, Any]) -> nn.Module:
    return workloads.build_model("plain").to(torch.bfloat16)


def frozen_model(options: dict[str, Any]) -> nn.Module:
    model = workloads.build_model("plain")
    next(model.parameters()).requires_grad_(False)
    return model


def other_options(**others: Any) -> Callable[[dict[str, Any]], nn.Module]:
    def change(options: dict[str, Any]) -> nn.Module:
        options.update(others)
        return workloads.build_model("plain")

    return change


# What one worker does differently, and the first difference that must be named.
ODD: dict[str, tuple[Callable[[dict[str, Any]], nn.Module], str]] = {
    "model": (odd_model, "parameter 0.weight is 6x7 float32 there and 5x7 float32 here"),
    "dtype": (narrow_model, "parameter 0.weight is 5x7 bfloat16 there and 5x7 float32 here"),
    "frozen": (frozen_model, "parameter 0.weight is 5x7 float32 without gradient there"),
    "strategy": (other_options(strategy="local-sgd"), "local_sgd.LocalSgd there"),
    "period": (other_options(period=8), "option period is 8 there and 4 here"),
    "wire": (other_options(wire="int8"), "option wire is 'int8' there and 'fp32' here"),
    "buffers": (other_options(buffers="keep"), "buffers is 'keep' there and 'mean' here"),
    "metric": (other_options(metric=lambda: 1.0), "report_every is 100 there and None here"),
}


def attach_odd(workers: Workers, odd_rank: int) -> list[str]:
    said = []
    for change, _ in ODD.values():
        options: dict[str, Any] = {"strategy": "daso"}
        is_odd = workers.world.rank == odd_rank
        model = change(options) if is_odd else workloads.build_model("plain")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError) as problem:
            attach(model, optimizer, workers=workers, **options)
        said.append(str(problem.value))
        # Nothing is left: it can be attached rightly.
        model = workloads.build_model("plain")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        attach(model, optimizer, "daso", workers=workers).detach()
    return said


@pytest.mark.parametrize("odd_rank", [0, 2])
def test_the_odd_worker_and_the_first_difference_are_named(odd_rank: int) -> None:
    results = run_job(attach_odd, odd_rank, nodes=(2, 1))
    for said in results:
        assert said == results[0]
        for text, (_, difference) in zip(said, ODD.values(), strict=True):
            assert f"worker {odd_rank} on node {odd_rank // 2} (" in text
            assert difference in text
            assert "\n" not in text
