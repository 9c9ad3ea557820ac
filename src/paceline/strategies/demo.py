"""DeMo: nodes exchange only the strongest frequencies of their momentum."""

from __future__ import annotations

import math
from typing import Any

import torch

from paceline.cluster.record import Count, Flag, Share
from paceline.strategies.replica import Replica
from paceline.strategies.strategy import Strategy
from paceline.teams import Pending, Team, Workers


class Demo(Strategy):
    """Decoupled momentum: send the largest components, keep the rest (Peng et al. 2024).

    Each node adds its gradients to a momentum, takes a cosine transform of every ``chunk`` of it,
    sends the ``keep`` largest coefficients and subtracts them. The gradient that the optimizer sees
    is the nodes' average of what was sent; what was not sent stays and comes later. The paper's
    optimizer is SGD on the ``sign`` of that.

    Args:
        keep: Coefficients sent of every chunk.
        chunk: Values that are transformed together.
        decay: The share of the momentum that is kept from step to step.
        sign: Whether the optimizer sees the signs alone.

    """

    summary = "exchange the strongest frequencies of the momentum at every step"

    def __init__(
        self, *, keep: Count = 8, chunk: Count = 64, decay: Share = 0.999, sign: Flag = False
    ) -> None:
        super().__init__()
        if keep > chunk:
            raise ValueError(f"keep={keep} must not be more than chunk={chunk}")
        self._keep = keep
        self._chunk = chunk
        self._decay = decay
        self._sign = sign

    def start(self, replica: Replica, workers: Workers) -> None:
        """The momentum is zero."""
        super().start(replica, workers)
        self._tally = replica.tally()
        self.parameters_changed()

    def parameters_changed(self) -> None:
        """Begin with a momentum of zero."""
        numel = sum(parameter.numel() for parameter in self.replica.parameters)
        is_wide = any(p.dtype == torch.float64 for p in self.replica.parameters)
        dtype = torch.float64 if is_wide else torch.float32
        self._transform = _cosines(self._chunk).to(self.replica.device, dtype)
        num_chunks = -(-numel // self._chunk)
        self._momentum = self._transform.new_zeros(num_chunks, self._chunk)

    def bucket_ready(self, bucket: torch.Tensor) -> Pending | None:
        """Average the gradients inside the node."""
        node = self.workers.node
        return node.all_reduce(bucket, "mean") if node.size > 1 else None

    @torch.no_grad()
    def gradients_ready(self) -> None:
        """Replace the gradients by the average of what the nodes send of their momentum."""
        if self.workers.num_nodes == 1:
            return
        self._momentum.mul_(self._decay).add_(self._weighted(self._gradients()))
        coefficients = self._momentum @ self._transform.T
        places = coefficients.abs().topk(self._keep, dim=1).indices
        values = coefficients.gather(1, places)
        own = torch.zeros_like(coefficients).scatter_(1, places, values)
        self._momentum.sub_(own @ self._transform)
        mean = self._mean_of_nodes(places, values) @ self._transform
        self._set_gradients((mean.sign() if self._sign else mean).view(-1))

    def _gradients(self) -> torch.Tensor:
        parts = [
            parameter.new_zeros(parameter.numel()) if parameter.grad is None else parameter.grad
            for parameter in self.replica.parameters
        ]
        flat = torch.cat([part.reshape(-1).to(self._momentum.dtype) for part in parts])
        missing = self._momentum.numel() - flat.numel()
        return torch.nn.functional.pad(flat, (0, missing)).view_as(self._momentum)

    def _weighted(self, gradients: torch.Tensor) -> torch.Tensor:
        """Times what this node's batch counts beside the mean one, where batches are unequal."""
        own = self.replica.trained_since(self._tally)
        self._tally = self.replica.tally()
        if not isinstance(own, torch.Tensor):
            return gradients
        mean = own.reshape(1).clone()
        self.wait(self.workers.world.all_reduce(mean, "mean"))
        return gradients.mul_(own / mean)

    def _mean_of_nodes(self, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """All nodes' coefficients, weighted by their workers: the first worker of each collects."""
        node, across = self.workers.node, self.workers.across
        sizes = self.workers.node_sizes
        # Two bytes for a place, as few as a chunk allows, and the value itself.
        message = torch.cat(
            [part.reshape(-1).view(torch.uint8) for part in (places.to(torch.int16), values)]
        )
        num_bytes, num_nodes = message.numel(), self.workers.num_nodes
        gathered = message.new_empty(num_nodes * num_bytes)
        if node.rank == 0:
            self.wait(across.all_gather(gathered, message))
        if node.size > 1:
            self.wait(node.broadcast(gathered, 0))
        firsts = [ranks[0] for ranks in self.workers.ranks_by_node]
        mean = torch.zeros_like(self._momentum)
        for place, rank in enumerate(sorted(firsts)):
            part = gathered[place * num_bytes : (place + 1) * num_bytes]
            where, what = torch.split(part, [2 * places.numel(), num_bytes - 2 * places.numel()])
            indices = where.clone().view(torch.int16).to(torch.int64).view_as(places)
            weight = sizes[firsts.index(rank)] / sum(sizes)
            mean.scatter_add_(1, indices, what.clone().view(values.dtype).view_as(values) * weight)
        return mean

    def _set_gradients(self, flat: torch.Tensor) -> None:
        sizes = [parameter.numel() for parameter in self.replica.parameters]
        parts = torch.split(flat[: sum(sizes)], sizes)
        for parameter, part in zip(self.replica.parameters, parts, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(part.view_as(parameter))
            elif bool(part.any()):  # other nodes have used it
                parameter.grad = part.view_as(parameter).to(parameter.dtype)

    def lockstep(self) -> Team:
        """The node's workers: their momentum is their node's."""
        return self.workers.node

    def state_dict(self) -> dict[str, Any]:
        """The step and the momentum."""
        return {**super().state_dict(), "momentum": self._momentum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the step and the momentum."""
        super().load_state_dict(state)
        self._momentum.copy_(state["momentum"])

    def load_averaged(self, state: dict[str, Any]) -> None:
        """The average of what nodes have not sent yet is still to be sent."""
        self.load_state_dict(state)


def _cosines(size: int) -> torch.Tensor:
    """The orthonormal matrix of the discrete cosine transform of type II."""
    places = torch.arange(size, dtype=torch.float64)
    angles = math.pi / size * torch.outer(places, places + 0.5)
    matrix = torch.cos(angles) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix
