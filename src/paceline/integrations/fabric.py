"""Lightning Fabric with paceline: a ``Strategy`` for each of paceline's strategies.

Importing this module registers them: ``Fabric(strategy="paceline_daso")``.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.integrations.binding import Binding
from paceline.integrations.checkpoints import folder_beside, load_beside, save_beside
from paceline.integrations.missing import missing
from paceline.strategies import Strategy, strategy_names
from paceline.strategies.registry import strategy_class
from paceline.train import Pace

try:
    # Two packages with the same classes, which do not know each other: take the one in use.
    if "lightning_fabric" in sys.modules and "lightning" not in sys.modules:
        raise ImportError
    from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
    from lightning.fabric.strategies import STRATEGY_REGISTRY, DDPStrategy
except ImportError:
    try:
        from lightning_fabric.plugins.collectives.torch_collective import default_pg_timeout
        from lightning_fabric.strategies import STRATEGY_REGISTRY, DDPStrategy
    except ImportError as error:
        raise missing("lightning", extra="lightning") from error

_KEY = "paceline"


class PacelineFabricStrategy(DDPStrategy):  # type: ignore[misc]
    """A Fabric strategy that trains with one of paceline's.

    Set model and optimizers up together: ``model, optimizer = fabric.setup(model, optimizer)``. At
    the end, all workers call ``fabric.strategy.finish()``.

    Args:
        strategy: The name of one of paceline's strategies, or a strategy object such as
            ``paceline.Daso(period=8)``.
        accelerator: As for ``DDPStrategy``.
        parallel_devices: As for ``DDPStrategy``.
        cluster_environment: As for ``DDPStrategy``.
        checkpoint_io: As for ``DDPStrategy``.
        precision: As for ``DDPStrategy``.
        process_group_backend: As for ``DDPStrategy``.
        timeout: As for ``DDPStrategy``.
        start_method: As for ``DDPStrategy``.
        **options: Options of the strategy, if it is given by name, and further arguments of
            :func:`paceline.attach`.

    """

    def __init__(
        self,
        strategy: str | Strategy = "daso",
        *,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision: Any = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
        start_method: str = "popen",
        **options: Any,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision=precision,
            process_group_backend=process_group_backend,
            timeout=timeout,
            start_method=start_method,
        )
        self._binding = Binding(strategy, options)
        self._attached: list[tuple[nn.Module, Pace]] = []
        self._backward_sync_control = _BackwardSyncControl(self._attached)

    @property
    def pace(self) -> Pace:
        """What ``attach`` returned for the model that was set up; the first of several."""
        if not self._attached:
            raise ValueError("no model was set up yet: call fabric.setup(model, optimizer) first")
        return self._attached[0][1]

    def finish(self) -> None:
        """End the training: all workers get the same parameters and buffers, bit for bit."""
        for _, pace in self._attached:
            pace.finish()

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Optimizer], *scheduler: Any
    ) -> tuple[Any, ...]:
        """Attach; the module is not wrapped."""
        self._attached.append((module, self._binding.attach(module, optimizers)))
        return (module, optimizers, *scheduler)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """A module to call, not to train: without its optimizer nothing would be synchronised."""
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_refuse_gradient)  # type: ignore[no-untyped-call]
        return module

    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """Only together with its module."""
        raise ValueError(_TOGETHER)

    def save_checkpoint(self, path: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Save the strategy's state too: in the file, or beside it where workers differ."""
        if _KEY in state:
            raise ValueError(f"{_KEY!r} is where the strategy's state goes; use another key")
        notes = [
            save_beside(pace, folder_beside(path) / str(place))
            for place, (module, pace) in enumerate(self._attached)
            if any(each is module for each in state.values())
        ]
        super().save_checkpoint(path, {**state, _KEY: notes}, *args, **kwargs)

    def load_checkpoint(
        self, path: Any, state: Any = None, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Load the strategy's state too, of the models in ``state``."""
        rest: dict[str, Any] = super().load_checkpoint(path, state, *args, **kwargs)
        if not isinstance(state, dict) or not state:
            return rest
        notes = rest.pop(_KEY, [])
        paces = [
            (place, pace)
            for place, (module, pace) in enumerate(self._attached)
            if any(each is module for each in state.values())
        ]
        if notes and len(notes) != len(paces):
            raise ValueError(
                f"{path} holds {len(notes)} models with a strategy, and {len(paces)} of those in "
                "state were set up with their optimizers"
            )
        for (place, pace), note in zip(paces, notes, strict=False):
            load_beside(pace, folder_beside(path) / str(place), note)
        return rest

    def teardown(self) -> None:
        """Detach, and all that Fabric does."""
        for _, pace in self._attached:
            pace.detach()
        self._attached.clear()
        super().teardown()

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Give each of paceline's strategies a name in Fabric: ``"paceline_local_sgd"``."""
        for name in strategy_names():
            strategy_registry.register(
                f"paceline_{name.replace('-', '_')}",
                functools.partial(cls, name),
                description=strategy_class(name).summary,
                override=True,
            )


class _BackwardSyncControl:
    """What ``fabric.no_backward_sync`` asks."""

    def __init__(self, attached: list[tuple[nn.Module, Pace]]) -> None:
        self._attached = attached

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        if not enabled:
            return contextlib.nullcontext()
        for attached, pace in self._attached:
            if attached is module:
                return pace.no_sync()
        raise ValueError(_TOGETHER)


_TOGETHER = (
    "paceline needs the model and its optimizers together: call fabric.setup(model, optimizer) in "
    "the place of setup_module and setup_optimizers"
)


def _refuse_gradient(_: torch.Tensor) -> None:
    raise ValueError(_TOGETHER)


PacelineFabricStrategy.register_strategies(STRATEGY_REGISTRY)
