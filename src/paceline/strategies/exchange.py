"""One exchange of parameters between nodes, from its start to its arrival."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from paceline.strategies.buffers import contribution, mean_of_contributions
from paceline.strategies.layout import FlatLayout
from paceline.strategies.replica import Replica
from paceline.strategies.wire import Wire
from paceline.teams import Pending, Workers


class Fragment:
    """A part of the parameters that is exchanged as a whole: layouts, and a wire for each.

    At most one exchange of a fragment is under way, so its memory is kept from one to the next.
    """

    def __init__(self, layouts: Sequence[FlatLayout], wires: Sequence[Wire]) -> None:
        self.layouts = list(layouts)
        self.wires = list(wires)
        self.sent = [layout.new_flat() for layout in layouts]
        self.mean = [layout.new_flat() for layout in layouts]


class Exchange:
    """An exchange of one fragment's parameters, and of the buffers, under way.

    One worker of each node (the ``representative``, by its place in the node) talks to its peers on
    the other nodes and passes the result on inside its node. All of it runs in the background.
    """

    def __init__(
        self,
        fragment: Fragment,
        replica: Replica,
        workers: Workers,
        *,
        representative: int,
        step: int,
        rate_bytes_per_s: float | None,
        weights: Sequence[int],
        trained: float | torch.Tensor = 1.0,
    ) -> None:
        self.fragment = fragment
        self.step = step
        self.sent = [
            layout.pack(out=flat)
            for layout, flat in zip(fragment.layouts, fragment.sent, strict=True)
        ]
        self.mean = fragment.mean
        self.buffers_sent = [layout.pack() for layout in replica.buffer_layouts()]
        self.buffers = [torch.empty_like(flat) for flat in self.buffers_sent]
        """Become the average over the representatives of all nodes."""
        self.is_measured = isinstance(trained, torch.Tensor)
        """Whether nodes also count by what they have trained on, which each knows of itself."""
        # Counts of nodes or workers are exact in any type, what they have trained on is not.
        precision = torch.float64 if self.is_measured else torch.float32
        self.weights = torch.ones(workers.num_nodes, dtype=precision, device=replica.device)
        """What each node counts in the average; 0 where its values were refused."""
        self._own_weight: float | torch.Tensor = weights[workers.node_index]
        self._weights: Sequence[float] = weights
        if self.is_measured:
            self._own_weight = self._own_weight * trained
        self._buffer_mode = replica.buffer_mode
        self._workers = workers
        self._representative = representative
        self._absent: frozenset[int] = frozenset()
        self._rate = rate_bytes_per_s
        self._pending: Pending | None = workers.background.run(self._run, device=replica.device)

    @classmethod
    def arrived(
        cls, fragment: Fragment, state: dict[str, Any], replica: Replica, workers: Workers
    ) -> Exchange:
        """An exchange that a checkpoint holds; it had arrived when it was saved."""

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            # A merge overwrites them, and the checkpoint may be loaded again.
            return tensor.to(replica.device, copy=True)

        exchange = cls.__new__(cls)
        exchange.fragment = fragment
        exchange.step = state["step"]
        exchange.sent = [copied(flat) for flat in state["sent"]]
        exchange.mean = [copied(flat) for flat in state["mean"]]
        exchange.buffers_sent = [copied(flat) for flat in state["buffers_sent"]]
        exchange.buffers = [copied(flat) for flat in state["buffers"]]
        exchange.weights = copied(state["healthy"])
        exchange.is_measured = state["is_measured"]
        exchange._workers = workers
        exchange._absent = frozenset(state.get("absent", ()))
        exchange._pending = None
        return exchange

    def state_dict(self) -> dict[str, Any]:
        """The exchange after its arrival, which this waits for."""
        self.wait()
        return {
            "step": self.step,
            "sent": self.sent,
            "mean": self.mean,
            "buffers_sent": self.buffers_sent,
            "buffers": self.buffers,
            "healthy": self.weights,
            "is_measured": self.is_measured,
            "absent": sorted(self._absent),
        }

    def wait(self) -> None:
        """Block until the result is there."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None

    def done(self) -> bool:
        """Whether the result is there, on this worker."""
        return self._pending is None or self._pending.done()

    @property
    def total_weight(self) -> float:
        """What the nodes that are in the average count together; 0 if there is none."""
        return float(self.weights.sum().item())

    def num_healthy(self) -> int:
        """How many nodes are in the average."""
        return sum(weight > 0 for weight in self.weights.tolist())

    @property
    def is_own_node_healthy(self) -> bool:
        """Whether this node sent finite values."""
        return bool(self.weights[self._workers.node_index].item())

    def report_unhealthy(self) -> None:
        """Warn about nodes whose values were refused."""
        names = self._workers.node_names
        refused = [
            names[node]
            for node, weight in enumerate(self.weights.tolist())
            if not weight and node not in self._absent
        ]
        if refused:
            warnings.warn(
                f"non-finite parameters from {', '.join(refused)} were refused in the exchange of "
                f"step {self.step}; the other nodes' average does not contain them",
                RuntimeWarning,
                stacklevel=2,
            )

    def _run(self) -> None:
        is_healthy = all(_is_finite(flat) for flat in self.sent)
        for wire, flat in zip(self.fragment.wires, self.sent, strict=True):
            wire.prepare(flat, is_healthy=is_healthy)

        def talk() -> None:
            if self._workers.node.rank == self._representative:
                self._talk_across(is_healthy)

        self._workers.background.cross(talk)
        self._absent = self._workers.background.absent
        self._pass_on_in_node()

    def _talk_across(self, is_healthy: bool) -> None:
        across = self._workers.background.across
        self.weights.zero_()
        self.weights[self._workers.node_index] = float(is_healthy) * self._own_weight
        across.all_reduce(self.weights, "sum").wait()
        total = self.total_weight or 1.0
        weights = self._by_rank(self.weights.tolist() if self.is_measured else self._weights)
        for wire, flat in zip(self.fragment.wires, self.mean, strict=True):
            for index in range(len(wire.chunks)):
                start_s, before = self._workers.clock(), across.bytes_handed
                wire.average(flat, index, across, total, weights)
                self._keep_rate(across.bytes_handed - before, start_s)
        for sent, flat in zip(self.buffers_sent, self.buffers, strict=True):
            is_heard = self._are_own_buffers_heard(is_healthy)
            summed = contribution(sent, is_heard=is_heard, weight=self._own_weight)
            across.all_reduce(summed, "sum").wait()
            flat.copy_(mean_of_contributions(summed))

    def _by_rank(self, weights: Sequence[float]) -> Sequence[float]:
        """Weights of the nodes in the order of the team's members, which their ranks number."""
        if len(set(weights)) == 1:
            return weights
        ranks = [of_node[self._representative] for of_node in self._workers.ranks_by_node]
        return [weight for _, weight in sorted(zip(ranks, weights, strict=True))]

    def _are_own_buffers_heard(self, is_healthy: bool) -> bool:
        """Whether this node's buffers are in the average: a sick node's are not."""
        if self._buffer_mode == "broadcast":
            return self._workers.node_index == int((self.weights > 0).int().argmax().item())
        return is_healthy

    def _pass_on_in_node(self) -> None:
        node = self._workers.background.node
        if node.size == 1:
            return
        for flat in (self.weights, *self.mean, *self.buffers):
            node.broadcast(flat, self._representative).wait()

    def _keep_rate(self, num_bytes: int, start_s: float) -> None:
        """Pause after a chunk if a rate was asked for, so that other traffic gets its turn."""
        if self._rate is not None:
            took_s = self._workers.clock() - start_s
            self._workers.background.pause(max(0.0, num_bytes / self._rate - took_s))


def _is_finite(flat: torch.Tensor) -> bool:
    """Whether all values are finite; one pass in the usual case.

    The sum of finite values is finite unless they are enormous, and then each one is looked at.
    """
    return bool(flat.sum().isfinite().item()) or bool(flat.isfinite().all().item())
