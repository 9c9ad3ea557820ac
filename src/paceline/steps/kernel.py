"""A kernel: one operation on the device, by its name, its operands and its settings.

Two calls are the same kernel if they cost the same: shapes, layouts, dtypes and integer settings
count; values, and settings that only scale values (a learning rate, an epsilon), do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

DTYPE_BYTES = {
    "f64": 8,
    "f32": 4,
    "bf16": 2,
    "f16": 2,
    "c64": 8,
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "u8": 1,
    "b8": 1,
}
"""The dtypes of operands by their short names, with their sizes."""
_MOST_SIZE, _MOST_RANK = 1 << 60, 16  # a float holds their product


class Operand(NamedTuple):
    """A tensor as a kernel sees it: everything but its values."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    """None for an ordinary contiguous tensor."""

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes in memory that it touches; a broadcast dimension (stride 0) is there only once."""
        numel = self.numel
        if self.strides is not None and numel:
            for size, stride in zip(self.shape, self.strides, strict=True):
                if stride == 0:
                    numel //= size
        return numel * DTYPE_BYTES[self.dtype]

    @property
    def is_channels_last(self) -> bool:
        """Whether the channels of an image (dimension 1) lie next to each other in memory."""
        return self.strides is not None and len(self.shape) >= 4 and self.strides[1] == 1

    def to_text(self) -> str:
        """The operand as text: ``@f32:8,3,224,224``, strides behind a second colon."""
        text = f"@{self.dtype}:{','.join(map(str, self.shape))}"
        return text if self.strides is None else f"{text}:{','.join(map(str, self.strides))}"

    @classmethod
    def from_text(cls, text: str) -> Operand:
        """The operand that :meth:`to_text` wrote."""
        dtype, shape, *strides = text[1:].split(":")
        made = cls(dtype, _numbers(shape), _numbers(strides[0]) if strides else None)
        is_sound = dtype in DTYPE_BYTES and all(0 <= size <= _MOST_SIZE for size in made.shape)
        is_fitting = made.strides is None or len(made.strides) == len(made.shape)
        if not is_sound or not is_fitting or len(strides) > 1 or len(made.shape) > _MOST_RANK:
            raise ValueError(f"{text[:80]!r} is no operand")
        return made


@dataclass(frozen=True)
class Kernel:
    """One operation on the device."""

    op: str
    """The aten operator without ``aten.`` and ``.default``, or one of our own names for what has
    several names there (``attention``, ``batch_norm``) or does several things at once
    (``convolution_backward_data``)."""
    args: tuple[Any, ...]
    """Operands, numbers, texts, None, and tuples of these; named ones as a pair (name, value)."""
    math: str = ""
    """How float32 is multiplied: "tf32" on tensor cores, "" for what the dtype says."""
    outputs: tuple[Operand, ...] = field(default=(), compare=False)
    """What it writes; follows from the rest."""

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The tensors among the arguments, in order."""
        return tuple(_operands(self.args))

    @cached_property
    def num_bytes(self) -> int:
        """Bytes read and written at least once."""
        return sum(each.num_bytes for each in (*self.operands, *self.outputs))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # The arguments of an optimizer's kernel name every parameter: hash them only once.
        return hash((self.op, self.args, self.math))

    def to_parts(self) -> list[Any]:
        """The kernel as plain JSON values: op, arguments, outputs, math."""
        return [self.op, _plain(self.args), [each.to_text() for each in self.outputs], self.math]

    @classmethod
    def from_parts(cls, parts: list[Any]) -> Kernel:
        """The kernel that :meth:`to_parts` took apart; ValueError for anything else."""
        op, args, outputs, math_mode = parts
        if not (isinstance(op, str) and isinstance(args, list) and isinstance(math_mode, str)):
            raise ValueError(f"{str(parts)[:80]!r} is no kernel")
        if not (isinstance(outputs, list) and all(isinstance(each, str) for each in outputs)):
            raise ValueError(f"{str(parts)[:80]!r} is no kernel")
        return cls(op, _rich(args), math_mode, tuple(map(Operand.from_text, outputs)))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",")) if text else ()


def _operands(value: Any) -> Iterator[Operand]:
    if isinstance(value, Operand):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _operands(each)


def _plain(value: Any) -> Any:
    if isinstance(value, Operand):
        return value.to_text()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _rich(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_rich(each) for each in value)
    if isinstance(value, dict):
        raise ValueError("a table is no argument of a kernel")
    if isinstance(value, str) and value.startswith("@"):
        return Operand.from_text(value)
    return value
