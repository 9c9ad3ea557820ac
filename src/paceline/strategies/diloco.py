"""DiLoCo: rare exchanges, whose result is a gradient for an outer optimizer."""

from __future__ import annotations

import torch

from paceline.cluster.record import Count, CountOrZero, Positive, Share
from paceline.strategies.outer import OuterNesterov
from paceline.strategies.periodic import Periodic, Weighting, check_delay
from paceline.strategies.wire import WireName


class Diloco(Periodic):
    """Every ``period`` steps an outer Nesterov step from the nodes' average (Douillard 2023).

    Args:
        period: Steps from one outer step to the next.
        outer_lr: The learning rate of the outer optimizer.
        outer_momentum: The outer optimizer's Nesterov momentum.
        wire: The form in which parameters travel between nodes: "fp32", "bf16", "fp16" or "int8".
        chunk_bytes: An exchange travels in parts of this size.
        rate_bytes_per_s: The most that an exchange may send per second, to leave the link to
            others.
        weighting: What counts in an average: "workers" weights each node by its number of workers,
            or by the samples that it has trained on since the last average where batches are
            unequal, as one large batch would; with "nodes" all nodes count alike.

    """

    summary = "rare exchanges with an outer Nesterov optimizer"

    def __init__(
        self,
        *,
        period: Count = 32,
        outer_lr: Positive = 0.7,
        outer_momentum: Share = 0.9,
        wire: WireName = "fp32",
        chunk_bytes: Count = 16 << 20,
        rate_bytes_per_s: Positive | None = None,
        weighting: Weighting = "workers",
    ) -> None:
        super().__init__(
            wire=wire,
            chunk_bytes=chunk_bytes,
            rate_bytes_per_s=rate_bytes_per_s,
            weighting=weighting,
        )
        self.period = period
        self._outer_lr = outer_lr
        self._outer_momentum = outer_momentum

    def make_outer(self, values: torch.Tensor) -> OuterNesterov:
        """Nesterov momentum over exchanges."""
        return OuterNesterov(values, lr=self._outer_lr, momentum=self._outer_momentum)


class StreamingDiloco(Diloco):
    """DiLoCo fragment by fragment, overlapped with compute (Douillard et al. 2025).

    Args:
        period: Steps from one outer step of a fragment to its next.
        fragments: Parts of the model, exchanged in turn.
        delay: Steps from an exchange to its merge.
        keep: The share of a worker's own parameters in a merge.
        outer_lr: The learning rate of the outer optimizer.
        outer_momentum: The outer optimizer's Nesterov momentum.
        wire: The form in which parameters travel between nodes: "fp32", "bf16", "fp16" or "int8".
        chunk_bytes: An exchange travels in parts of this size.
        rate_bytes_per_s: The most that an exchange may send per second, to leave the link to
            others.
        weighting: What counts in an average: "workers" weights each node by its number of workers,
            or by the samples that it has trained on since the last average where batches are
            unequal, as one large batch would; with "nodes" all nodes count alike.

    """

    summary = "DiLoCo in fragments, overlapped with compute"
    merge_rule = "lerp"

    def __init__(
        self,
        *,
        period: Count = 32,
        fragments: Count = 4,
        delay: CountOrZero = 2,
        keep: Share = 0.5,
        outer_lr: Positive = 0.7,
        outer_momentum: Share = 0.9,
        wire: WireName = "fp32",
        chunk_bytes: Count = 16 << 20,
        rate_bytes_per_s: Positive | None = None,
        weighting: Weighting = "workers",
    ) -> None:
        super().__init__(
            period=period,
            outer_lr=outer_lr,
            outer_momentum=outer_momentum,
            wire=wire,
            chunk_bytes=chunk_bytes,
            rate_bytes_per_s=rate_bytes_per_s,
            weighting=weighting,
        )
        check_delay(delay, period)
        if fragments > period:
            raise ValueError(
                f"{fragments} fragments cannot take turns in a period of {period} steps; ask for "
                "fewer fragments or a longer period"
            )
        self.num_fragments = fragments
        self.delay = delay
        self.keep = keep
