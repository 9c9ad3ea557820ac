"""A stand-in for the step that is trained: what it computes is measured, not captured.

A strategy in a running job sees parameters, not the loop around them. For the rehearsal a model of
the same sizes will do: one parameter for each bucket of gradients, since buckets and flat
parameters are all that strategies exchange.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from paceline.auto.figures import Computing
from paceline.rehearse.step_prices import StepPrices
from paceline.steps import Call, Capture, Step
from paceline.steps.capture import GradientReady, StepMemory
from paceline.strategies import Replica
from paceline.train.buckets import group_parameters


class StandIn(nn.Module):
    """A model without values, with one parameter per bucket and the buffers that travel."""

    def __init__(self, replica: Replica) -> None:
        super().__init__()
        buckets = group_parameters(replica.parameters)
        # Backward passes go through a model from its end to its beginning.
        for number, bucket in reversed(list(enumerate(buckets))):
            size = sum(parameter.numel() for parameter in bucket)
            values = torch.empty(size, dtype=bucket[0].dtype, device="meta")
            self.register_parameter(_name(number), nn.Parameter(values))
        for number, layout in enumerate(replica.buffer_layouts()):
            self.register_buffer(f"buffers{number}", layout.new_flat().to("meta"))
        self.num_buckets = len(buckets)


def _name(bucket: int) -> str:
    return f"bucket{bucket}"


def stand_in_step(model: StandIn) -> Step:
    """The step that is rehearsed in place of the user's."""
    return Step(model=model, inputs=torch.empty(1, device="meta"), name="this job")


def stand_in_capture(model: StandIn) -> Capture:
    """One call for the forward pass, one for each bucket of the backward pass and one behind it."""
    sizes = [model.get_parameter(_name(number)).nbytes for number in range(model.num_buckets)]
    calls = [
        Call("forward", "forward", (), 0, 0),
        *(Call(f"{_name(number)}", "backward", (), 0, 0) for number in range(len(sizes) + 1)),
        Call("step", "optimizer", (), 0, 0),
    ]
    gradients = [
        GradientReady(_name(number), num_bytes, after_call=number + 2)
        for number, num_bytes in enumerate(sizes)
    ]
    memory = StepMemory(parameters_bytes=0, gradients_bytes=0, optimizer_bytes=0, batch_bytes=0)
    return Capture(
        name="this job",
        batch=1,
        precision="fp32",
        calls=tuple(calls),
        gradients=tuple(gradients),
        memory=memory,
        num_parameters=len(sizes),
        num_modules=0,
        num_autograd_functions=0,
    )


def measured_prices(computing: Computing, *, serial: bool) -> StepPrices:
    """What the calls of :func:`stand_in_capture` took, and what a strategy's own will take."""
    seconds = np.array(
        [computing.forward_s, *computing.buckets_s, computing.rest_s, computing.optimizer_s]
    )

    def own_calls(calls: Sequence[Call]) -> tuple[np.ndarray, np.ndarray]:
        num_bytes = [sum(kernel.num_bytes for kernel in call.kernels) for call in calls]
        return np.zeros(len(calls)), np.array(num_bytes) / computing.copied_bytes_per_s

    return StepPrices(
        host_s=np.zeros(len(seconds)), device_s=seconds, calls=own_calls, serial=serial
    )
