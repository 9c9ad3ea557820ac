"""Which parameters lie in the same memory: what is merged once must not be merged twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from paceline.strategies.local import local


@dataclass(frozen=True, slots=True, order=True)
class _Span:
    """The bytes between a parameter's first and last value."""

    device: str
    start: int
    stop: int
    index: int

    @classmethod
    def of(cls, parameter: torch.Tensor, index: int) -> _Span:
        strides = zip(parameter.shape, parameter.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in strides)
        start = parameter.data_ptr()
        stop = start + (last + 1) * parameter.element_size()
        return cls(str(parameter.device), start, stop, index)


def distinct(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Parameters without those that share all of their memory with one before them.

    Two that share only a part of it cannot be exchanged one by one, and are refused.
    """
    parts = [local(parameter) for parameter in parameters]
    # Nothing lies at an address on the meta device, nor in an empty tensor.
    spans = sorted(
        _Span.of(part, index)
        for index, part in enumerate(parts)
        if not part.is_meta and part.numel() > 0
    )
    twins: set[int] = set()
    for before, after in pairwise(spans):
        first, second = parts[before.index], parts[after.index]
        is_apart = before.device != after.device or after.start >= before.stop
        if is_apart or not _share_values(first, second):
            continue
        if (before.start, before.stop) != (after.start, after.stop) or not (
            first.stride() == second.stride() or (_fills(before, first) and _fills(after, second))
        ):
            raise ValueError(
                "two of the model's parameters share a part of their memory; give each its own, "
                "or make them one parameter"
            )
        twins.add(max(before.index, after.index))
    return [parameter for index, parameter in enumerate(parameters) if index not in twins]


def _fills(span: _Span, parameter: torch.Tensor) -> bool:
    return parameter.nbytes == span.stop - span.start


def _share_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether any byte belongs to both: columns of one matrix lie between each other's."""
    if first.element_size() != second.element_size():
        return True
    spans = [_Span.of(each, 0) for each in (first, second)]
    start, size = min(span.start for span in spans), first.element_size()
    count = torch.zeros((max(span.stop for span in spans) - start) // size, dtype=torch.int8)
    for each, span in zip((first, second), spans, strict=True):
        count.as_strided(each.shape, each.stride(), (span.start - start) // size).add_(1)
    return bool((count > 1).any())
