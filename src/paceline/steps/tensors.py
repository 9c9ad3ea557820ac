"""The tensors inside a batch, a module's attributes or an operator's arguments."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors inside nested tuples, lists, mappings and dataclasses.

    Args:
        value: A tensor, a container, or anything else, which then has none.
    """
    return _tensors_in(value, set())


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of nested tuples, lists, mappings and dataclasses with every tensor changed.

    Args:
        value: A tensor, a container, or anything else, which is returned as it is.
        change: Gives what takes a tensor's place.
    """

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        # A copy that finds the new tensors in its memo: it keeps any class and what else is there.
        memo = {id(tensor): change(tensor) for tensor in tensors_in(leaf)}
        return copy.deepcopy(leaf, memo) if memo else leaf

    return tree_map(changed, value)


def _tensors_in(value: Any, seen: set[int]) -> Iterator[Tensor]:
    # What operators take and give, thousands of times: plain enough not to ask torch's pytree.
    if isinstance(value, Tensor):
        yield value
        return
    if type(value) in (tuple, list):
        for each in value:
            yield from _tensors_in(each, seen)
        return
    if value is None or isinstance(value, int | float | str):
        return
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            yield leaf
        elif (contents := _contents(leaf)) and id(leaf) not in seen:
            seen.add(id(leaf))  # objects may refer to each other in circles
            yield from _tensors_in(contents, seen)


def _contents(leaf: Any) -> list[Any]:
    """What is in a container that torch's pytree does not know, such as a UserDict."""
    if isinstance(leaf, Mapping):
        return list(leaf.values())
    if isinstance(leaf, list | tuple):  # a class of the user's
        return list(leaf)
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        return [getattr(leaf, field.name, None) for field in dataclasses.fields(leaf)]
    return []
