"""DiLoCo: rare exchanges, whose result is a gradient for an outer optimizer."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from pydantic import Field, model_validator

from paceline.strategies.outer import OuterNesterov
from paceline.strategies.periodic import Periodic, PeriodicOptions
from paceline.strategies.strategy import Options


class DilocoOptions(PeriodicOptions):
    """Options of DiLoCo."""

    period: int = Field(32, ge=1, description="Steps from one outer step to the next.")
    outer_lr: float = Field(0.7, gt=0, description="Learning rate of the outer optimizer.")
    outer_momentum: float = Field(0.9, ge=0, lt=1, description="Its Nesterov momentum.")


class Diloco(Periodic):
    """Every ``period`` steps an outer Nesterov step from the nodes' average (Douillard 2023)."""

    options_type: ClassVar[type[Options]] = DilocoOptions
    options: DilocoOptions
    summary = "rare exchanges with an outer Nesterov optimizer"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.period = self.options.period

    def make_outer(self, values: torch.Tensor) -> OuterNesterov:
        """Nesterov momentum over exchanges."""
        return OuterNesterov(values, lr=self.options.outer_lr, momentum=self.options.outer_momentum)


class StreamingDilocoOptions(DilocoOptions):
    """Options of streaming DiLoCo."""

    fragments: int = Field(4, ge=1, description="Parts of the model, exchanged in turn.")
    delay: int = Field(2, ge=0, description="Steps from an exchange to its merge.")
    keep: float = Field(
        0.5, ge=0, lt=1, description="Share of a worker's own parameters in a merge."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.delay > self.period:
            raise ValueError(f"delay={self.delay} must not be longer than period={self.period}")
        if self.fragments > self.period:
            raise ValueError(
                f"{self.fragments} fragments cannot take turns in a period of {self.period} "
                "steps; ask for fewer fragments or a longer period"
            )
        return self


class StreamingDiloco(Diloco):
    """DiLoCo fragment by fragment, overlapped with compute (Douillard et al. 2025)."""

    options_type: ClassVar[type[Options]] = StreamingDilocoOptions
    options: StreamingDilocoOptions
    summary = "DiLoCo in fragments, overlapped with compute"
    merge_rule = "lerp"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.num_fragments = self.options.fragments
        self.delay = self.options.delay
        self.keep = self.options.keep
