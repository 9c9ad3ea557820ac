"""States of models and optimizers that FSDP2 may have sharded: each worker's own part of them.

Whole tensors are their own part. So there is one way for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.strategies.local import is_sharded, local, sharded_like


def model_state(model: nn.Module) -> dict[str, Any]:
    """A model's state dict with what lies here."""
    state = model.state_dict()
    for name, value in state.items():
        state[name] = local(value) if isinstance(value, torch.Tensor) else value
    return state


def load_model_state(model: nn.Module, saved: dict[str, Any]) -> None:
    """Restore what :func:`model_state` returned on this worker; ``saved`` is used up."""
    for name, own in model.state_dict().items():
        if isinstance(own, torch.Tensor):
            saved[name] = sharded_like(saved[name], own)
    model.load_state_dict(saved)


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    """An optimizer's state dict with what lies here."""
    state = optimizer.state_dict()
    values = {
        index: {
            name: local(value) if isinstance(value, torch.Tensor) else value
            for name, value in each.items()
        }
        for index, each in state["state"].items()
    }
    return {**state, "state": values}


def load_optimizer_state(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Restore what :func:`optimizer_state` returned on this worker."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    values = {
        index: _as_sharded(each, parameters[index]) if is_sharded(parameters[index]) else each
        for index, each in saved["state"].items()
    }
    optimizer.load_state_dict({**saved, "state": values})


def _as_sharded(values: Mapping[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
    """Of a sharded parameter: momenta are sharded as it is, and step counts are whole."""
    shape = local(parameter).shape
    return {
        name: sharded_like(value, parameter)
        if isinstance(value, torch.Tensor) and value.shape == shape
        else value
        for name, value in values.items()
    }
