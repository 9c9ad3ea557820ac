"""Bags of embeddings: as many rows gathered and summed as a plain lookup of equal traffic moves.

CUDA has kernels of its own for them. Forward, one reads a row for each index and writes one for
each bag; backward, the gradient of the table is made as a plain embedding's is, by sorting.
"""

from __future__ import annotations

from paceline.steps.kernel import Kernel, Operand

BAG, BAG_BACKWARD = "_embedding_bag", "_embedding_bag_backward"
"""The operators' names."""


def bag_kernel(table: Operand, indices: Operand, bags: Operand) -> Kernel:
    """The lookup that reads and writes as many rows: half of those read, half of those written."""
    rows = max((indices.numel + bags.shape[0]) // 2, 1)
    found = Operand(table.dtype, (rows, table.shape[-1]))
    return Kernel("embedding", (table, Operand(indices.dtype, (rows,))), outputs=(found,))


def bag_backward_kernel(gradient: Operand, indices: Operand, table: Operand) -> Kernel:
    """The dense gradient of a lookup of as many indices."""
    rows = Operand(gradient.dtype, (indices.numel, table.shape[-1]))
    args = (rows, Operand(indices.dtype, (indices.numel,)), table.shape[0], -1, False)
    return Kernel("embedding_dense_backward", args, outputs=(table,))
