"""A captured step as `torch.compile` would run it: chains fused, libraries called as before.

The optimizer is not compiled, and gradients become ready in the order of the eager step, as they do
where DistributedDataParallel splits the compiled graph at its buckets.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

from paceline.rehearse.fusion import Group, fuse, moved_bytes
from paceline.rehearse.padding import padded
from paceline.rehearse.parts import Part, Value, parts_of
from paceline.steps import (
    Call,
    Capture,
    Flow,
    GradientReady,
    Kernel,
    Operand,
    Step,
    capture_step,
    capture_with_flow,
)

_LONG_ROW = 4096
"""Elements of a row up to which a kernel keeps it on the chip; a longer one is read again."""

_NUM_SPLITS = 8 * 132  # eight blocks on each of an H200's multiprocessors


def compile_step(step: Step) -> Capture:
    """Capture a step as `torch.compile` would run it.

    Args:
        step: What is trained. It is not changed.
    """
    chosen = step
    if step.memory_format == "contiguous" and _prefers_channels_last(capture_step(step)):
        chosen = replace(step, memory_format="channels_last")
    capture, flows = capture_with_flow(chosen)
    if capture.evaluations:
        raise ValueError(
            "An optimizer that evaluates the loss itself, such as L-BFGS, has no compiled "
            "prediction; take another optimizer, or leave compiled out."
        )
    return fused_capture(capture, flows)


def fused_capture(capture: Capture, flows: Sequence[Flow]) -> Capture:
    """Fuse the calls of a capture.

    Args:
        capture: The eager step.
        flows: What each of its calls reads and writes.
    """
    parts = [
        part
        for place, (call, flow) in enumerate(zip(capture.calls, flows, strict=True))
        if call.kernels or call.phase == "optimizer"
        for part in parts_of(place, call, flow)
    ]
    groups = fuse(parts)
    outside: set[Value] = {
        access.value
        for flow in flows
        if not flow.in_model
        for access in flow.reads
        if access.operand.numel
    }
    wide: set[Value] = set()
    kernels = [
        _library(group.parts[0], outside, wide)
        if group.is_library
        else (_fused(group, reads, writes), *_second_sums(group))
        for group, (reads, writes) in zip(groups, moved_bytes(groups), strict=True)
    ]
    calls, ends = [], []
    for place in _in_order(groups):
        group = groups[place]
        own = capture.calls[group.last_call]
        if group.is_library:
            calls.append(replace(own, kernels=kernels[place]))
        else:
            calls.append(Call("fused", own.phase, kernels[place], own.live_bytes, 1))
        ends.append(group.last_call)
    return replace(
        capture,
        calls=tuple(calls),
        gradients=_ready(capture, ends),
        num_modules=0,
        num_autograd_functions=0,
    )


def _library(part: Part, outside: set[Value], wide: set[Value]) -> tuple[Kernel, ...]:
    """A library's kernels; with padding, also what copies operands and the result.

    ``outside`` are the values that are read outside the model, ``wide`` those padded already.
    """
    if not part.in_model or len(part.kernels) != 1 or padded(part.kernels[0]) is part.kernels[0]:
        return part.kernels
    plain, kernel = part.kernels[0], padded(part.kernels[0])
    found = [kernel]
    for read, own, new in zip(part.reads, plain.operands, kernel.operands, strict=False):
        if new.shape != own.shape and read.value not in wide:
            wide.add(read.value)
            found.append(_copy(own.num_bytes, new.num_bytes))
    if outside & part.writes.keys():
        # The model returns a slice of the padded result, which the loss makes contiguous.
        own, stride = plain.outputs[0], kernel.outputs[0].shape[-1]
        sliced = Operand(own.dtype, own.shape, (stride, 1))
        found.append(Kernel("clone", (sliced,), outputs=(own,)))
    return tuple(found)


def _copy(read: int, written: int) -> Kernel:
    return Kernel("fused", (Operand("u8", (read,)), written), outputs=(Operand("u8", (written,)),))


def _fused(group: Group, reads: Sequence[int], writes: Sequence[int]) -> Kernel:
    times = 2 if group.row > _LONG_ROW else 1
    operands = tuple(Operand("u8", (times * size,)) for size in reads)
    outputs = tuple(Operand("u8", (size,)) for size in writes)
    # What it writes does not follow from what it reads, so it is among the arguments too.
    return Kernel("fused", (*operands, sum(writes)), outputs=outputs)


def _second_sums(group: Group) -> list[Kernel]:
    """What adds up the partial sums over columns that a kernel over rows has left.

    Inductor's "mix order reduction" (torch/_inductor/codegen/simd.py) takes 16 to 128 rows at once.
    """
    if not group.row:
        return []
    found = []
    for part in group.parts:
        num_rows = part.size // group.row
        at_once = min(max(2 ** int(math.log2(max(num_rows // _NUM_SPLITS, 1))), 16), 128)
        partial = Operand("f32", (-(-num_rows // at_once), group.row))
        kernel = Kernel("sum.dim_IntList", (partial, (0,)), outputs=(Operand("f32", (group.row,)),))
        found += [kernel] * (len(part.writes) if part.kind == "column" else 0)
    return found


def _in_order(groups: Sequence[Group]) -> list[int]:
    """An order in which every group comes after those it needs, near the eager one."""
    missing = [len(group.needs) for group in groups]
    followers: list[list[int]] = [[] for _ in groups]
    for place, group in enumerate(groups):
        for need in group.needs:
            followers[need].append(place)
    ready = [(group.last_call, place) for place, group in enumerate(groups) if not missing[place]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, place = heapq.heappop(ready)
        order.append(place)
        for each in followers[place]:
            missing[each] -= 1
            if not missing[each]:
                heapq.heappush(ready, (groups[each].last_call, each))
    return order


def _ready(capture: Capture, ends: Sequence[int]) -> tuple[GradientReady, ...]:
    """Each gradient is ready after the last kernel that has work of a call before it."""
    places = {end: number + 1 for number, end in enumerate(ends)}
    latest, after = 0, []
    for place in range(len(capture.calls)):
        after.append(latest)
        latest = max(latest, places.get(place, 0))
    after.append(latest)
    return tuple(replace(each, after_call=after[each.after_call]) for each in capture.gradients)


def _prefers_channels_last(capture: Capture) -> bool:
    """Inductor's rule for training on GPUs (torch/_inductor/graph.py, ``decide_layout_opt``)."""
    convolutions = [kernel for kernel in capture.kernels() if kernel.op == "convolution"]
    if not convolutions:
        return False
    weights = [kernel.operands[1].shape for kernel in convolutions]
    grouped = any(
        kernel.args[8] > 1 and shape[1] > 1
        for kernel, shape in zip(convolutions, weights, strict=True)
    )
    narrowing = any(shape[0] * 2 <= shape[1] and shape[2] > 1 for shape in weights)
    small = all(shape[0] <= 64 and shape[1] <= 64 for shape in weights)
    num_forward = sum(call.phase == "forward" for call in capture.calls)
    return not (grouped or narrowing or small or num_forward >= 300 * len(convolutions))
