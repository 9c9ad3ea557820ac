"""A call of the step as a compiler sees it: parts that it may fuse, and kernels that it may not.

A normalisation is a reduction, which makes its statistics, and a pointwise part, which applies
them: the second may be done where its result is needed, the first may not.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from paceline.kernels.family import family_of, packet_of
from paceline.steps import Access, Call, Flow, Kernel, Operand

Value = Hashable
PartKind = Literal["library", "pointwise", "row", "column"]
_STATISTIC_BYTES = 8  # a mean and a deviation, or a maximum and a sum, half of it each

_GATHERS = ("embedding", "index", "index_select", "gather")
_OWN_KERNEL = ("cumsum", "topk", "sort", "dot", "vdot")
_ROW_NORMS = ("native_layer_norm", "_fused_rms_norm", "_softmax", "_log_softmax")
_ROW_NORMS_BACKWARD = (
    "native_layer_norm_backward",
    "_fused_rms_norm_backward",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
)
_COLUMN_NORMS = ("batch_norm", "native_group_norm")
_COLUMN_NORMS_BACKWARD = ("batch_norm_backward", "native_group_norm_backward")
# Pooling that is a sum or a copy; windows that overlap have kernels of their own.
_POOLING_SUMS = ("_adaptive_avg_pool2d",)
_POOLING_COPIES = (
    "_adaptive_avg_pool2d_backward",
    "upsample_nearest2d",
    "upsample_nearest2d_backward",
)


@dataclass(frozen=True, slots=True)
class Read:
    """What a part reads of a value."""

    value: Value
    offset: int
    num_bytes: int


@dataclass(eq=False, slots=True)
class Part:
    """A piece of a call: one kernel of a library, or a loop that can be fused with others."""

    call: int
    """The call's place in the capture."""
    phase: str
    kind: PartKind
    """``row``: a reduction of elements that lie together. ``column``: of elements that do not."""
    size: int
    """Elements of its iteration space."""
    reads: tuple[Read, ...]
    writes: dict[Value, int]
    """Bytes by value."""
    row: int = 0
    """Elements that a row reduction combines."""
    kernels: tuple[Kernel, ...] = ()
    """Of a library's part."""
    in_model: bool = True
    """Whether it is compiled, being the model's."""
    random: frozenset[Value] = field(default_factory=frozenset)
    """Values that are made again from a seed alone, such as dropout's mask."""


def parts_of(place: int, call: Call, flow: Flow) -> list[Part]:
    """The parts of a call that runs something on the device."""
    if not flow.in_model or not call.kernels:
        return [_library(place, call, flow)]
    first = call.kernels[0]
    packet, family = packet_of(first.op), family_of(first)
    whole = _pointwise(place, call, flow)
    if family == "pointwise" or packet in _POOLING_COPIES or packet == "nll_loss_backward":
        return [_with_mask(whole, flow) if packet == "native_dropout" else whole]
    if packet in _GATHERS:
        return [_gather(whole)]
    if packet == "nll_loss_forward":  # picks one element of each row
        return [replace(whole, kind="row", row=whole.size // max(flow.reads[1].operand.numel, 1))]
    if (family == "reduction" and packet not in _OWN_KERNEL) or packet in _POOLING_SUMS:
        return [_reduction(whole, first, flow)]
    if packet in _ROW_NORMS:
        return _norm(whole, "row", _row_length(first), flow.writes[1:])
    if packet in _COLUMN_NORMS:
        return _norm(whole, "column", 0, flow.writes[1:])
    if packet in _ROW_NORMS_BACKWARD or packet in _COLUMN_NORMS_BACKWARD:
        kind: PartKind = "row" if packet in _ROW_NORMS_BACKWARD else "column"
        return _norm_backward(whole, kind, _row_length(first), flow)
    if packet == "convolution" and isinstance(first.args[2], Operand):
        return _biased_convolution(place, call, flow)
    if call.op == "convolution_backward" and call.kernels[-1].op == "sum.dim_IntList":
        return _biased_convolution_backward(place, call, flow)
    return [_library(place, call, flow)]


def _reads(accesses: Iterable[Access]) -> tuple[Read, ...]:
    return tuple(
        Read(each.value, each.offset, each.operand.num_bytes)
        for each in accesses
        if each.operand.numel
    )


def _writes(accesses: Iterable[Access]) -> dict[Value, int]:
    return {each.value: each.operand.num_bytes for each in accesses if each.operand.numel}


def _library(place: int, call: Call, flow: Flow) -> Part:
    writes = _writes(flow.writes)
    return Part(
        place,
        call.phase,
        "library",
        0,
        _reads(flow.reads),
        writes,
        kernels=call.kernels,
        in_model=flow.in_model,
    )


def _pointwise(place: int, call: Call, flow: Flow) -> Part:
    size = max((each.operand.numel for each in (*flow.reads, *flow.writes)), default=0)
    return Part(place, call.phase, "pointwise", size, _reads(flow.reads), _writes(flow.writes))


def _with_mask(whole: Part, flow: Flow) -> Part:
    return replace(whole, random=frozenset(each.value for each in flow.writes[1:]))


def _gather(whole: Part) -> Part:
    """Only the rows that are asked for are read."""
    written = sum(whole.writes.values())
    reads = tuple(replace(each, num_bytes=min(each.num_bytes, written)) for each in whole.reads)
    return replace(whole, reads=reads, size=max(written // 4, 1))


def _reduction(whole: Part, kernel: Kernel, flow: Flow) -> Part:
    shape = flow.reads[0].operand.shape
    dims = _reduced_dims(kernel, len(shape))
    kept_behind = any(dim not in dims and size > 1 for dim, size in _behind(shape, dims))
    if kept_behind or whole.size == math.prod(shape[dim] for dim in dims):
        return replace(whole, kind="column")
    return replace(whole, kind="row", row=math.prod(shape[dim] for dim in dims))


def _behind(shape: Sequence[int], dims: set[int]) -> list[tuple[int, int]]:
    return list(enumerate(shape))[min(dims, default=0) :]


def _reduced_dims(kernel: Kernel, rank: int) -> set[int]:
    if packet_of(kernel.op) in _POOLING_SUMS:
        return set(range(2, rank))
    found = next((each for each in kernel.args[1:] if _is_dims(each)), None)
    if isinstance(found, int):
        found = (found,)
    return {dim % rank for dim in found} if found and rank else set(range(rank))


def _is_dims(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(value) and type(value[0]) is int
    return type(value) is int


def _row_length(kernel: Kernel) -> int:
    """Elements that share one norm."""
    sizes = next((each for each in kernel.args if isinstance(each, tuple) and _is_dims(each)), None)
    if sizes and not isinstance(sizes, Operand):
        return math.prod(sizes)
    return max(kernel.operands, key=lambda each: each.numel).shape[-1]


def _norm(whole: Part, kind: PartKind, row: int, statistics: Sequence[Access]) -> list[Part]:
    """The statistics, from the input; then the output, from both."""
    made = _writes(statistics)
    if not made:
        made = {("statistics", whole.call): _STATISTIC_BYTES * whole.size // max(row, 1)}
    image = whole.reads[:1]
    rest = {value: size for value, size in whole.writes.items() if value not in made}
    also = tuple(Read(value, 0, size) for value, size in made.items())
    return [
        replace(whole, kind=kind, row=row, reads=image, writes=made),
        replace(whole, reads=(*whole.reads, *also), writes=rest),
    ]


def _norm_backward(whole: Part, kind: PartKind, row: int, flow: Flow) -> list[Part]:
    """Sums over the gradient and the input; the input's gradient; those of the weights."""
    large = max((each.operand.numel for each in flow.writes), default=0)
    gradient = _writes(each for each in flow.writes if each.operand.numel == large)
    weights = {value: size for value, size in whole.writes.items() if value not in gradient}
    sums: dict[Value, int] = {("sums", whole.call): _STATISTIC_BYTES * whole.size // max(row, 1)}
    if kind == "column":
        channels = next((each.operand.shape[1] for each in flow.reads), 1)
        sums = {("sums", whole.call): _STATISTIC_BYTES * channels, **weights}
    also = tuple(Read(value, 0, size) for value, size in sums.items())
    found = [
        replace(whole, kind=kind, row=row if kind == "row" else 0, writes=sums),
        replace(whole, reads=(*whole.reads, *also), writes=gradient),
    ]
    if kind == "row" and weights:
        found.append(replace(whole, kind="column", writes=weights))
    return found


def _biased_convolution(place: int, call: Call, flow: Flow) -> list[Part]:
    """The library's kernel without a bias, which is then added where the result is needed."""
    (kernel,) = call.kernels
    plain = Kernel(
        kernel.op, (*kernel.args[:2], None, *kernel.args[3:]), kernel.math, kernel.outputs
    )
    inner: Value = ("convolution", place)
    num_bytes = flow.writes[0].operand.num_bytes
    library = _library(place, call, Flow(flow.reads[:2], ()))
    added = _pointwise(place, call, Flow(flow.reads[2:3], flow.writes))
    return [
        replace(library, kernels=(plain,), writes={inner: num_bytes}),
        replace(added, reads=(*added.reads, Read(inner, 0, num_bytes))),
    ]


def _biased_convolution_backward(place: int, call: Call, flow: Flow) -> list[Part]:
    """The library's kernels, and the bias's gradient as a sum."""
    library = _library(place, call, Flow(flow.reads, flow.writes[:-1]))
    total = _pointwise(place, call, Flow(flow.reads[:1], flow.writes[-1:]))
    return [replace(library, kernels=call.kernels[:-1]), replace(total, kind="column")]
