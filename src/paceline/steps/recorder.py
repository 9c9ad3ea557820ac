"""The recorder: every call on tensors, its kernels, and the memory in use meanwhile."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.cluster.device import Precision
from paceline.steps.canonical import handed_over_bytes, kernels_of, op_name, operand
from paceline.steps.ctc import ctc_results, is_ctc
from paceline.steps.cuda_like import cuda_like
from paceline.steps.kernel import Kernel, Operand
from paceline.steps.masks import is_pick, is_put_back, masks_in, places_of, selected, with_places
from paceline.steps.packed import batch_in
from paceline.steps.step import AUTOCAST_DTYPES
from paceline.steps.tensors import tensors_in

Phase = Literal["forward", "backward", "optimizer"]
_READ = torch.ops.aten._local_scalar_dense.default
_COPY = torch.ops.aten._to_copy.default
_RANDOM = torch.ops.aten.rand.default
_LONGEST_TEXTS = "The sounds and texts of ctc_loss are taken to be as long as the longest."
_LONGEST_SEQUENCES = (
    "Packed sequences are taken to be as long as the longest: shorter ones take less."
)
_ALL_PICKED = "Masks that pick elements are taken to pick all of them: fewer take less."
_MOST_READ = 1 << 20  # numbers at once
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


class Access(NamedTuple):
    """A tensor that a call reads or writes: which contents of which storage, and how much of it."""

    value: tuple[int, int]
    """The storage's number, and how many times it had been written in place."""
    offset: int
    operand: Operand


@dataclass(frozen=True, slots=True)
class Flow:
    """What one call reads and writes."""

    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    in_model: bool = True
    """Whether the model made it, forward or backward, and not the loss or the optimizer."""


class CallSink(Protocol):
    """What takes the calls, one after another: a list, or a journal."""

    def append(self, call: Call, /) -> None:
        """Add a call."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every call, and which storages live while it runs."""

    def __init__(self, precision: str, calls: CallSink, *, flows: list[Flow] | None = None) -> None:
        """``flows`` is given one flow for every call."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: Phase = "forward"
        self.calls = calls
        self.num_modules = 0
        self.live_bytes = 0
        self.muted = False
        self.in_model = True
        self.number_read = 0.5
        """What reading a fake's number gives in the optimizer's phase.

        Adam reads its step count, Adagrad too, and NAdam a product of factors below one: any
        number between 0 and 1 leads the same way.
        """
        self.assumptions: set[str] = set()
        """What was assumed of values that fakes do not have, each in a sentence."""
        self.answers: Iterator[Any] | None = None
        """What reading fakes' numbers gives instead, one after another."""
        self._precision = precision
        self._storages: dict[int, weakref.ref[Any]] = {}
        self._flows = flows
        self._numbers: dict[int, int] = {}
        self._num_storages = 0
        self._num_writes: Counter[int] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in here; saying so at every call takes as long as a call."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Nobody has to know what the recorder itself asks of tensors.
        with torch._C.DisableTorchFunction():
            if func.is_view and self._flows is None:
                return self._record_view(func, args, kwargs or {})
            return self._record(func, args, kwargs or {})

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _READ and (batch := batch_in(args[0])) is not None:
            self.assumptions.add(_LONGEST_SEQUENCES)
            return batch
        if func is _READ and self.phase == "optimizer":
            if not self.muted:
                self.calls.append(Call(op_name(func), self.phase, (), self.live_bytes, 1))
                if self._flows is not None:
                    self._flows.append(Flow((), ()))
            return self._plausible_value(args[0])
        if func is _COPY and _is_read(args[0], kwargs):
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if func is _RANDOM and math.prod(args[0]) == 1:
            result: Any = _mean_of_random(args[0])
        elif is_ctc(func):
            self.assumptions.add(_LONGEST_TEXTS)
            result = ctc_results(*args)
        elif is_pick(func, args) or is_put_back(func, args):
            self.assumptions.add(_ALL_PICKED)
            args, result = self._picked(func, args)
        else:
            result = func(*args, **kwargs)
        self.adopt(tensors_in(result))
        self._note(func, args, kwargs, result)
        return result

    def _picked(self, func: Any, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """The call's arguments without masks, and its result; lists where masks are set before."""
        if func is torch.ops.aten.masked_select.default:
            return args, selected(*args)
        masks = masks_in(args)
        places = [places_of(mask) for mask in masks]
        self.adopt(places)
        for mask, found in zip(masks, places, strict=True):
            self._note(torch.ops.aten.nonzero.default, (mask,), {}, found)
        args = with_places(args, places)
        return args, func(*args)

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Add a call, with its kernels."""
        if self.muted or func.namespace in ("prim", "profiler"):
            return
        kernels = kernels_of(func, args, kwargs, result, precision=self._precision)
        num_tensors = sum(1 for _ in tensors_in(args))
        live_bytes = self.live_bytes + handed_over_bytes(kernels)
        self.calls.append(Call(op_name(func), self.phase, kernels, live_bytes, num_tensors))
        if self._flows is not None:
            self._flows.append(self._flow(func, args, kwargs, result))

    def _record_view(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Most calls of a strategy are views of parameters: no kernel, one tensor."""
        result = func(*args, **kwargs)
        self.adopt((result,) if isinstance(result, Tensor) else result)
        if not self.muted:
            self.calls.append(Call(op_name(func), self.phase, (), self.live_bytes, 1))
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

    def _flow(self, func: Any, args: Any, kwargs: Any, result: Any) -> Flow:
        given = list(tensors_in((args, kwargs)))
        reads = tuple(map(self._access, given))
        changed = [
            each
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for each in tensors_in(value)
        ]
        for each in changed:
            self._num_writes[self._number(each)] += 1
        own = {self._number(each) for each in given}
        made = [each for each in tensors_in(result) if self._number(each) not in own]
        return Flow(reads, tuple(map(self._access, (*changed, *made))), self.in_model)

    def _number(self, tensor: Tensor) -> int:
        key = tensor.untyped_storage()._cdata
        if key not in self._numbers:
            self._num_storages += 1
            self._numbers[key] = self._num_storages
        return self._numbers[key]

    def _access(self, tensor: Tensor) -> Access:
        number = self._number(tensor)
        value = (number, self._num_writes[number])
        return Access(value, int(tensor.storage_offset()), operand(tensor))

    def _plausible_value(self, tensor: Tensor) -> float | int | bool:
        """What reading a fake gives: yes, one, or the number that is to be read."""
        if self.answers is not None:
            answer: float | int | bool = next(self.answers)
            return answer
        if tensor.dtype == torch.bool:
            return True
        return self.number_read if tensor.is_floating_point() else 1

    def _freed(self, key: int, num_bytes: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            self.live_bytes -= num_bytes
            self._storages.pop(key, None)
            self._numbers.pop(key, None)  # an address is used again, a number is not

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


def _is_read(tensor: Tensor, kwargs: dict[str, Any]) -> bool:
    """Whether ``tolist()`` asks for a tensor without values: every number is 1, every flag set."""
    device = kwargs.get("device")
    return (
        tensor.is_meta
        and device is not None
        and device.type == "cpu"
        and tensor.numel() <= _MOST_READ
    )


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
