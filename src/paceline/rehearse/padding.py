"""Matrix products whose sizes are padded to what tensor cores take at full speed.

Inductor measures each case and pads where that is faster; here, where arithmetic limits the
product.
"""

from __future__ import annotations

from paceline.steps import Kernel, Operand

_ALIGNMENT = {"bf16": 8, "f16": 8, "f32": 4}
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_COMPUTE_BOUND = 100
"""Multiply-adds per element moved from which arithmetic limits a product.

Inductor's bound (torch/_inductor/fx_passes/pad_mm.py) is half the device's FLOP/s over its
bytes/s: 103 on an H200, 77 on an A100.
"""


def padded(kernel: Kernel) -> Kernel:
    """A product with sizes as Inductor pads them; any other kernel as it is."""
    if kernel.op not in _PRODUCTS or not kernel.outputs:
        return kernel
    left, right = kernel.operands[-2:]
    alignment = _ALIGNMENT.get(left.dtype, 1)
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    is_aligned = not any(size % alignment for size in (m, k, n))
    if is_aligned or m * k * n <= _COMPUTE_BOUND * (m * k + n * k + m * n):
        return kernel
    wide = [_widened(each, alignment) for each in (left, right, kernel.outputs[0])]
    before = tuple(
        _widened_bias(each, n, alignment) if isinstance(each, Operand) else each
        for each in kernel.args[: -2 if kernel.op in ("mm", "bmm") else 1]
    )
    return Kernel(kernel.op, (*before, wide[0], wide[1]), kernel.math, (wide[2],))


def _widened(each: Operand, alignment: int) -> Operand:
    """With sizes that are multiples of the alignment; its order in memory stays."""
    *copies, rows, columns = each.shape
    rows, columns = (-(-size // alignment) * alignment for size in (rows, columns))
    if each.strides is None or each.strides[-1] == 1 or copies:
        return Operand(each.dtype, (*copies, rows, columns))
    return Operand(each.dtype, (rows, columns), (1, rows))


def _widened_bias(each: Operand, columns: int, alignment: int) -> Operand:
    wide = -(-columns // alignment) * alignment
    return Operand(each.dtype, tuple(wide if size == columns else size for size in each.shape))
