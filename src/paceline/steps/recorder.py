"""The recorder: every call on tensors, its kernels, and the memory in use meanwhile."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.cluster.device import Precision
from paceline.steps.canonical import kernels_of, op_name
from paceline.steps.cuda_like import cuda_like
from paceline.steps.kernel import Kernel
from paceline.steps.step import AUTOCAST_DTYPES
from paceline.steps.tensors import tensors_in

Phase = Literal["forward", "backward", "optimizer"]
_ALLOCATION_BYTES = 512  # CUDA's caching allocator rounds every tensor up to this


@dataclass(frozen=True, slots=True)
class Call:
    """One operator as the host dispatches it."""

    op: str
    phase: Phase
    kernels: tuple[Kernel, ...]
    """What it runs on the device; nothing for a view."""
    live_bytes: int
    """Memory in use while it runs, its outputs included, workspaces not."""
    num_tensors: int
    """Tensors among its arguments: what a foreach operator's dispatch depends on."""


class CallSink(Protocol):
    """What takes the calls, one after another: a list, or a journal."""

    def append(self, call: Call, /) -> None:
        """Add a call."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every call, and which storages live while it runs."""

    def __init__(self, precision: str, calls: CallSink) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: Phase = "forward"
        self.calls = calls
        self.num_modules = 0
        self.live_bytes = 0
        self.muted = False
        self.number_read = 0.5
        """What reading a fake's number gives in the optimizer's phase.

        Adam reads its step count, Adagrad too, and NAdam a product of factors below one: any
        number between 0 and 1 leads the same way.
        """
        self._precision = precision
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and self.phase == "optimizer":
            if not self.muted:
                self.calls.append(Call(op_name(func), self.phase, (), self.live_bytes, 1))
            return self._plausible_value(args[0])
        if func is torch.ops.aten.rand.default and math.prod(args[0]) == 1:
            result: Any = _mean_of_random(args[0])
        else:
            result = func(*args, **kwargs)
        self.adopt(tensors_in(result))
        if not self.muted and func.namespace not in ("prim", "profiler"):
            kernels = kernels_of(func, args, kwargs, result, precision=self._precision)
            num_tensors = sum(1 for _ in tensors_in(args))
            self.calls.append(
                Call(op_name(func), self.phase, kernels, self.live_bytes, num_tensors)
            )
        return result

    def adopt(self, tensors: Any) -> None:
        """Count the memory of tensors that are new, until their storage is freed."""
        for tensor in tensors:
            if tensor.layout != torch.strided:
                raise ValueError(
                    "Sparse tensors, such as the gradient of nn.Embedding(sparse=True), cannot be "
                    "captured; use dense ones (sparse=False)."
                )
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._storages:
                continue
            num_bytes = _round_up(storage.nbytes())
            self.live_bytes += num_bytes
            self._storages[key] = weakref.ref(storage, self._freed(key, num_bytes))

    def _plausible_value(self, tensor: Tensor) -> float | int | bool:
        """What reading a fake gives: yes, one, or the number that is to be read."""
        if tensor.dtype == torch.bool:
            return True
        return self.number_read if tensor.is_floating_point() else 1

    def _freed(self, key: int, num_bytes: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            self.live_bytes -= num_bytes
            self._storages.pop(key, None)

        return forget


@contextmanager
def recording(precision: Precision) -> Iterator[list[Call]]:
    """Inside, tensors are fakes and every call on them is added to the list."""
    autocast = AUTOCAST_DTYPES.get(precision)
    casts = torch.autocast("cpu", dtype=autocast) if autocast else nullcontext()
    calls: list[Call] = []
    recorder = Recorder(precision, calls)
    recorder.phase = "optimizer"  # nothing here is a model, so values may be read
    with cuda_like(autocast=autocast is not None), FakeTensorMode(), recorder, casts:
        yield calls


def rounded_bytes(tensor: Tensor) -> int:
    """The memory that a tensor takes from CUDA's allocator."""
    return _round_up(tensor.numel() * tensor.element_size())


def _mean_of_random(shape: Sequence[int]) -> Tensor:
    """A random number that a model may decide by: its mean, whose value can be read.

    Layers that are dropped at random (LayerDrop, in OPT, BART and Whisper) are then all there.
    """
    value: Any = 0.5
    for _ in shape:
        value = [value]
    return torch.tensor(value)


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // _ALLOCATION_BYTES) * _ALLOCATION_BYTES
