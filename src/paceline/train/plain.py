"""Values that a checkpoint can hold: those that ``torch.load(weights_only=True)`` reads again."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import numpy as np
import torch

_PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.nn.Parameter)


def as_plain(value: Any, *, key: str) -> Any:
    """``value`` with NumPy's scalars as Python's, all the way down.

    A learning rate that NumPy computed is one; torch saves it, and refuses to load it. ``key`` says
    where the value stands, for the message about one that could not be loaded.
    """
    if isinstance(value, np.generic):
        value = value.item()
        if isinstance(value, np.longdouble | np.clongdouble):
            # Wider than any number of Python's, so item() leaves it.
            value = complex(value) if isinstance(value, np.clongdouble) else float(value)
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return value
    if kind in (list, tuple):
        return kind(as_plain(item, key=f"{key}[{i}]") for i, item in enumerate(value))
    if kind in (dict, OrderedDict):
        items = kind(
            (as_plain(name, key=f"a key of {key}"), as_plain(item, key=f"{key}[{name!r}]"))
            for name, item in value.items()
        )
        if kind is OrderedDict:
            # A module's state dict carries the versions of its modules as an attribute.
            vars(items).update(vars(value))
        return items
    _check_is_loadable(value, key)
    return value


def _check_is_loadable(value: Any, key: str) -> None:
    """Ask torch itself: it knows more types, and users may have added theirs."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        kind = type(value)
        raise ValueError(
            f"{key} is of type {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot "
            "hold; keep tensors, numbers, strings, lists and dicts there"
        ) from error
