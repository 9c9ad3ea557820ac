"""Gossip: nodes average their parameters in pairs, and nothing is ever sent to all."""

from __future__ import annotations

import random
from typing import Any

import torch

from paceline.cluster.record import Count, CountOrZero
from paceline.strategies.replica import Replica
from paceline.strategies.schedule import Phase, Schedule
from paceline.strategies.strategy import Strategy
from paceline.teams import Pending, Team, Workers


class Gossip(Strategy):
    """Every ``period`` steps each node averages its parameters with one other (Boyd et al. 2006).

    The pairs change from exchange to exchange, drawn at random from a seed that all share. What an
    exchange costs does not depend on the number of nodes. For stochastic gradients see Lian et al.
    2017 and Jin et al. 2016.

    Args:
        period: Steps from one exchange to the next.
        seed: Draws the pairs.

    """

    takes_shards = True
    summary = "average parameters between two nodes at a time"

    def __init__(self, *, period: Count = 4, seed: CountOrZero = 0) -> None:
        super().__init__()
        self.period = period
        self._seed = seed

    def start(self, replica: Replica, workers: Workers) -> None:
        """Lay the parameters out for messages."""
        super().start(replica, workers)
        self._tally = replica.tally()
        self.parameters_changed()

    def parameters_changed(self) -> None:
        """Lay the new parameters out."""
        [self._layouts] = self.replica.fragments(1)

    def bucket_ready(self, bucket: torch.Tensor) -> Pending | None:
        """Average the gradients inside the node."""
        node = self.workers.node
        return node.all_reduce(bucket, "mean") if node.size > 1 else None

    def after_step(self) -> None:
        """Average with another node, if it is time."""
        super().after_step()
        if self.workers.num_nodes > 1 and self.step % self.period == 0:
            turn = self.step // self.period
            partner = self.partner(turn)
            if partner is not None:
                self._average_with(partner, speaker=turn % self.workers.num_shared_indices)

    def partner(self, turn: int) -> int | None:
        """The node that this one averages with; where their number is odd, one has none.

        Args:
            turn: The number of the exchange.

        """
        order = list(range(self.workers.num_nodes))
        random.Random(f"{self._seed}/{turn}").shuffle(order)
        place = order.index(self.workers.node_index)
        other = place ^ 1  # 0 with 1, 2 with 3
        return order[other] if other < len(order) else None

    def _average_with(self, partner: int, *, speaker: int) -> None:
        """x ← (g₁·x₁ + g₂·x₂) / (g₁ + g₂), weighted by what the nodes have trained on."""
        node, own = self.workers.node, self.workers.node_index
        is_first = own < partner
        share = self._share_of_second(partner, speaker)
        for layout in self._layouts:
            flat = layout.pack()
            if node.rank == speaker:
                received = torch.empty_like(flat)
                self._swap(flat, received, partner, speaker)
                # In the nodes' order, so that both compute the same bits.
                pair = (flat, received) if is_first else (received, flat)
                flat = torch.lerp(*pair, share)
            if node.size > 1:
                self.wait(node.broadcast(flat, speaker))
            layout.unpack(flat)

    def _share_of_second(self, partner: int, speaker: int) -> float:
        """Of the pair's second node: by its workers, and by its batches where they are unequal."""
        sizes, own = self.workers.node_sizes, self.workers.node_index
        weights = {node: float(sizes[node]) for node in (own, partner)}
        trained = self._take_trained()
        if isinstance(trained, torch.Tensor) and self.workers.node.rank == speaker:
            told = trained.double().reshape(1)
            heard = torch.empty_like(told)
            self._swap(told, heard, partner, speaker)
            weights = {own: sizes[own] * told.item(), partner: sizes[partner] * heard.item()}
        first, second = (weights[node] for node in sorted(weights))
        return second / (first + second)

    def _take_trained(self) -> float | torch.Tensor:
        """What this node has trained on since its last average."""
        trained = self.replica.trained_since(self._tally)
        self._tally = self.replica.tally()
        return trained

    def _swap(self, sent: torch.Tensor, received: torch.Tensor, partner: int, speaker: int) -> None:
        across, by_node = self.workers.across, self.workers.ranks_by_node
        ranks = sorted(ranks[speaker] for ranks in by_node if speaker < len(ranks))
        peer = ranks.index(by_node[partner][speaker])
        sends_first = across.keeps_order and peer > across.rank
        pendings = [
            across.send(sent, peer) if is_sent else across.receive(received, peer)
            for is_sent in (sends_first, not sends_first)
        ]
        for pending in pendings:
            self.wait(pending)

    def schedule(self) -> Schedule:
        """One phase, which repeats itself after a period."""
        return Schedule(phases=(Phase("all", period=self.period),))

    def finish(self) -> None:
        """Give all workers the average, weighted by what they have trained on."""
        self.make_all_equal(weight=self._take_trained())

    def lockstep(self) -> Team:
        """The node's workers: they step with the same gradients."""
        return self.workers.node

    def state_dict(self) -> dict[str, Any]:
        """The step, and what was trained on up to the last average."""
        return {**super().state_dict(), "trained": (*self.replica.tally(), self._tally)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        super().load_state_dict(state)
        self.replica.num_batches, self.replica.trained, self._tally = state["trained"]

    def load_averaged(self, state: dict[str, Any]) -> None:
        """What nodes trained on is in the average already: they count from here."""
        super().load_state_dict(state)
        self._tally = self.replica.tally()
