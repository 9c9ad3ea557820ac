"""What one worker puts into a checkpoint, and takes from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.reading import visible
from paceline.strategies import Strategy
from paceline.strategies.local import is_sharded
from paceline.teams import Workers
from paceline.train.loading.loaders import Loaders
from paceline.train.own_parts import (
    load_model_state,
    load_optimizer_state,
    model_state,
    optimizer_state,
)
from paceline.train.plain import as_plain
from paceline.train.randomness import random_states, restore_random_states, seed_anew
from paceline.train.registered import Registered
from paceline.train.usual_batch import UsualBatch

_STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What is saved and loaded; under ``enabled=False`` of one worker, without a strategy."""

    model: nn.Module
    optimizers: Sequence[Optimizer]
    workers: Workers
    strategy: Strategy | None
    usual_batch: UsualBatch
    loaders: Loaders
    registered: Registered

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def is_sharded(self) -> bool:
        """Whether each worker has its own part of the model."""
        return any(is_sharded(parameter) for parameter in self.model.parameters())

    @property
    def strategy_name(self) -> str | None:
        """The strategy's class."""
        return None if self.strategy is None else type(self.strategy).__name__

    def state(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """All that a resumed run needs, in types that can be loaded again."""
        strategy = (
            None if self.strategy is None else strategy_state(self.strategy, self.usual_batch)
        )
        optimizers = [
            {
                "class": type(optimizer).__name__,
                "state": as_plain(optimizer_state(optimizer), key=f"optimizers[{i}]"),
            }
            for i, optimizer in enumerate(self.optimizers)
        ]
        model = as_plain(model_state(self.model), key="model")
        loaders = as_plain(self.loaders.state(), key="loaders")
        return {
            "model": model,
            "optimizers": optimizers,
            "strategy": strategy,
            "loaders": loaders,
            "registered": self.registered.state(),
            "random": random_states(self.device),
            "extra": as_plain(dict(extra), key="extra"),
        }

    def describe(self) -> dict[str, Any]:
        """What a checkpoint's marker says about it."""
        if self.strategy is None:
            return {"strategy": None}
        return {
            "strategy": self.strategy_name,
            "options": self.strategy.options.model_dump(),
            "buffers": self.strategy.replica.buffer_mode,
            "step": self.strategy.step,
            "sharded": self.is_sharded,
        }

    def fingerprint(self) -> str | None:
        """Of all that may differ between workers with equal parameters: the buffers.

        None where the parameters may differ as well.
        """
        if self.strategy is None or self.strategy.lockstep() is not self.workers.world:
            return None
        digest, saved = hashlib.blake2b(), self.model.state_dict()
        for name, buffer in self.model.named_buffers():
            if name in saved:
                values = buffer.detach().cpu().to_dense().resolve_conj().flatten()
                digest.update(name.encode() + values.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def check(self, state: Mapping[str, Any]) -> None:
        """Refuse another model's or other optimizers' state, before anything is changed."""
        _check_model(state["model"], model_state(self.model))
        saved = state["optimizers"]
        classes = [one["class"] for one in saved]
        own = [type(optimizer).__name__ for optimizer in self.optimizers]
        if classes != own:
            raise ValueError(
                f"the checkpoint was saved with {visible(' and '.join(classes))} as optimizer, "
                f"and this job has {' and '.join(own)}"
            )
        for one, optimizer in zip(saved, self.optimizers, strict=True):
            _check_groups(one["state"], optimizer)
        self.loaders.check(state["loaders"])
        self.registered.check(state.get("registered", {}))

    def load_strategy(self, state: Mapping[str, Any], *, is_averaged: bool = False) -> None:
        """Take over the strategy's state, or what follows from it where nodes were averaged."""
        if self.strategy is not None:
            load_strategy_state(
                self.strategy, self.usual_batch, state["strategy"], is_averaged=is_averaged
            )

    def load_registered(self, state: Mapping[str, Any]) -> None:
        """Take over schedulers and the like."""
        self.registered.load(state.get("registered", {}))

    def load_random(self, state: Mapping[str, Any], *, is_own: bool) -> None:
        """Take over random states; those of another worker only seed new ones."""
        states = state.get("random")  # which the old format does not have
        if states is not None and is_own:
            restore_random_states(states, self.device)
        elif states is not None:
            seed_anew(states, self.workers.world.rank)

    def load_training(self, state: Mapping[str, Any]) -> None:
        """Take over model, optimizers and loaders."""
        load_model_state(self.model, state["model"])
        for saved, optimizer in zip(state["optimizers"], self.optimizers, strict=True):
            load_optimizer_state(optimizer, saved["state"])
        self.loaders.load(state["loaders"])


def strategy_state(strategy: Strategy, usual_batch: UsualBatch) -> dict[str, Any]:
    """A strategy's state on this worker, whose it is, and what its weights are relative to."""
    return {
        "version": _STATE_VERSION,
        "strategy": type(strategy).__name__,
        "usual_batch": usual_batch.count,
        "state": as_plain(strategy.state_dict(), key="strategy"),
    }


def load_strategy_state(
    strategy: Strategy,
    usual_batch: UsualBatch,
    state: Mapping[str, Any],
    *,
    is_averaged: bool = False,
) -> None:
    """Give a strategy and its batches what :func:`strategy_state` gave."""
    own = type(strategy).__name__
    if state.get("version") != _STATE_VERSION or state.get("strategy") != own:
        raise ValueError(
            f"the checkpoint holds {state.get('strategy')} (version {state.get('version')}), "
            f"and {own} (version {_STATE_VERSION}) is attached"
        )
    if is_averaged:
        strategy.load_averaged(state["state"])
    else:
        strategy.load_state_dict(state["state"])
    usual_batch.count = state.get("usual_batch")  # which earlier checkpoints do not have


def _check_model(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    problem = None
    if missing := own.keys() - saved.keys():
        problem = f"it lacks {_first(missing)}"
    elif unknown := saved.keys() - own.keys():
        problem = f"the attached model lacks {_first(unknown)}"
    else:
        for name, value in own.items():
            shapes = [tuple(getattr(one, "shape", ())) for one in (saved[name], value)]
            if shapes[0] != shapes[1]:
                problem = f"{name} has the shape {shapes[0]} there and {shapes[1]} here"
                break
    if problem is not None:
        raise ValueError(f"the checkpoint is of another model: {problem}")


def _check_groups(saved: Mapping[str, Any], optimizer: Optimizer) -> None:
    sizes = [
        [len(group["params"]) for group in state["param_groups"]]
        for state in (saved, optimizer.state_dict())
    ]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"the checkpoint's {type(optimizer).__name__} has groups of {sizes[0]} parameters, "
            f"and the attached one of {sizes[1]}"
        )


def _first(names: set[str]) -> str:
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return visible(f"{min(names)}{others}")
