"""Accelerate's ``Accelerator``, made to leave the synchronising to paceline."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from paceline.train import Pace

_PLAIN_TYPES = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_MLU", "MULTI_HPU", "MULTI_NPU")


def check_accelerator(accelerator: Any) -> None:
    """Refuse what splits the model over workers: paceline exchanges whole models."""
    kind = accelerator.distributed_type.name
    parallelism = getattr(accelerator, "parallelism_config", None)
    if parallelism is not None:
        for name in ("tp", "cp", "sp"):
            if getattr(parallelism, f"{name}_enabled", False):
                kind = f"parallelism_config with {name}_size"
                break
    if kind.removeprefix("DistributedType.") not in _PLAIN_TYPES:
        raise ValueError(
            f"Accelerate is set to {kind}, which splits the model over workers, and paceline "
            "needs a model that is whole on every worker; use plain data parallelism"
        )


def leave_unwrapped(accelerator: Any, pace_of: Callable[[], Pace | None]) -> None:
    """Let ``prepare`` do all but wrap the model, and ``no_sync`` ask paceline.

    On this object only: the Trainer makes its Accelerator by itself.
    """
    prepare_model = accelerator.prepare_model

    def prepare_without_ddp(
        model: Any, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Any:
        # For Accelerate, a model for evaluation is one that needs no gradients of other workers.
        return prepare_model(model, device_placement=device_placement, evaluation_mode=True)

    accelerator.prepare_model = prepare_without_ddp

    def no_sync(model: Any = None) -> AbstractContextManager[None]:
        pace = pace_of()
        return contextlib.nullcontext() if pace is None else pace.no_sync()

    accelerator.no_sync = no_sync


@contextlib.contextmanager
def accumulating(accelerator: Any, pace: Pace) -> Iterator[None]:
    """Inside, ``accelerator.accumulate`` and ``no_sync`` keep paceline's exchanges back too."""
    before, theirs = vars(accelerator).get("no_sync"), accelerator.no_sync

    @contextlib.contextmanager
    def no_sync(model: Any) -> Iterator[None]:
        with theirs(model), pace.no_sync():
            yield

    accelerator.no_sync = no_sync
    try:
        yield
    finally:
        del accelerator.no_sync
        if before is not None:
            accelerator.no_sync = before
