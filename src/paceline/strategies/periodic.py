"""The core that the family of strategies shares.

Inside a node, gradients are averaged at every step. Between nodes, an exchange of parameters starts
every ``period`` steps and is merged ``delay`` steps later.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any, Literal

import torch

from paceline.cluster.record import Count, Positive
from paceline.strategies.buffers import merge_buffers, replace_buffers, settle_buffers
from paceline.strategies.exchange import Exchange, Fragment
from paceline.strategies.merge import MergeName, merge, share_kept
from paceline.strategies.outer import OuterOptimizer
from paceline.strategies.replica import Replica, Tally
from paceline.strategies.saved_state import check_sizes, count, no_errors
from paceline.strategies.schedule import Phase, Schedule
from paceline.strategies.strategy import Strategy
from paceline.strategies.wire import WireName, make_wire
from paceline.teams import Pending, Team, TeamError, Workers

Weighting = Literal["workers", "nodes"]


class Periodic(Strategy):
    """Nodes train on their own between exchanges. Subclasses set the numbers below.

    Args:
        wire: The form in which parameters travel between nodes: "fp32", "bf16", "fp16" or "int8".
        chunk_bytes: An exchange travels in parts of this size.
        rate_bytes_per_s: The most that an exchange may send per second, to leave the link to
            others.
        weighting: What counts in an average: "workers" weights each node by its number of workers,
            or by the samples that it has trained on since the last average where batches are
            unequal, as one large batch would; with "nodes" all nodes count alike.

    """

    survives = True
    takes_shards = True
    period: int = 1
    """Steps from one exchange of a fragment to its next."""
    delay: int = 0
    """Steps from the start of an exchange to its merge; 0 blocks."""
    merge_rule: MergeName = "mean"
    keep: float = 0.0
    """The share of a worker's own parameters under the merge rule ``lerp``."""
    num_fragments: int = 1
    late: Literal["wait", "continue"] = "wait"
    """What to do when an exchange has not arrived after ``delay`` steps."""

    def __init__(
        self,
        *,
        wire: WireName = "fp32",
        chunk_bytes: Count = 16 << 20,
        rate_bytes_per_s: Positive | None = None,
        weighting: Weighting = "workers",
    ) -> None:
        super().__init__()
        self._wire: WireName = wire
        self._chunk_bytes = chunk_bytes
        self._rate_bytes_per_s = rate_bytes_per_s
        self._weighting: Weighting = weighting

    def start(self, replica: Replica, workers: Workers) -> None:
        """Cut the parameters into fragments; nothing is under way."""
        super().start(replica, workers)
        if workers.num_nodes == 1 and workers.world.size > 1:
            warnings.warn(
                f"{type(self).__name__} found one node with {workers.world.size} workers: it "
                "averages gradients at every step and exchanges nothing between nodes; if the "
                "workers sit on several machines, say so with attach(workers=…)",
                RuntimeWarning,
                stacklevel=2,
            )
        self._make_fragments()  # refuses what cannot be before anything is made of its size
        sizes = workers.node_sizes
        is_by_workers = self._weighting == "workers"
        self._weights = [size // math.gcd(*sizes) if is_by_workers else 1 for size in sizes]
        """What each node counts in an average; 1 where all count alike."""
        self._num_exchanges = 0
        self._last_starts = [self._first_offset(i) for i in range(self.num_fragments)]
        none: Tally = (0, 0.0)
        self._tallies = [none] * self.num_fragments
        """Of each fragment: the replica's counts of batches when its last exchange started."""
        self._in_flight: dict[int, Exchange] = {}
        self._is_settled = True

    def parameters_changed(self) -> None:
        """Cut the new parameters into fragments; the outer optimizers' state is lost."""
        assert not self._in_flight
        self._make_fragments()

    def _make_fragments(self) -> None:
        self.fragments = []
        self.outers: list[list[OuterOptimizer]] = []
        for layouts in self.replica.fragments(self.num_fragments):
            flats = [layout.pack() for layout in layouts]
            wires = [
                make_wire(
                    self._wire,
                    flat,
                    num_nodes=self.workers.num_nodes,
                    chunk_bytes=self._chunk_bytes,
                )
                for flat in flats
            ]
            self.fragments.append(Fragment(layouts, wires))
            self.outers.append([outer for flat in flats if (outer := self.make_outer(flat))])

    def _first_offset(self, fragment: int) -> int:
        """Fragments take turns: each starts its share of a period after the one before."""
        return -(self.period - (fragment + 1) * self.period // self.num_fragments)

    def make_outer(self, values: torch.Tensor) -> OuterOptimizer | None:
        """The outer optimizer of a flat tensor of parameters, if the strategy has one."""
        return None

    def bucket_ready(self, bucket: torch.Tensor) -> Pending | None:
        """Average the gradients inside the node."""
        return self.workers.node.all_reduce(bucket, "mean") if self.workers.node.size > 1 else None

    def after_step(self) -> None:
        """Merge what has arrived, then start what is due."""
        super().after_step()
        if self.workers.num_nodes == 1:
            return
        self._is_settled = False
        for index in sorted(self._in_flight):
            self._merge_if_arrived(index)
        for index in range(self.num_fragments):
            if self.is_due(index):
                self._exchange(index)

    def is_due(self, fragment: int) -> bool:
        """Whether an exchange of a fragment starts at this step."""
        return self.step - self._last_starts[fragment] >= self.period

    def current_delay(self) -> int:
        """Steps from a start to its merge. A change also applies to an exchange under way."""
        return self.delay

    def _exchange(self, index: int) -> None:
        """Start an exchange. The one before must be over: all nodes then count alike."""
        if index in self._in_flight:
            self._merge(index)
        self._last_starts[index] = self.step
        # The turn at the front: each local index carries an exchange, then the next one does.
        turn = self._num_exchanges % self.workers.num_shared_indices
        self._in_flight[index] = self._begin(index, representative=turn)
        self._num_exchanges += 1
        if self.current_delay() == 0:
            self._merge(index)
            # Equal everywhere, unless each node has kept a share of its own.
            self._is_settled = self.num_fragments == 1 and self.keep == 0.0

    def _begin(self, index: int, *, representative: int) -> Exchange:
        trained = self._trained_since_last(index)
        self.begin_tally(index)
        return Exchange(
            self.fragments[index],
            self.replica,
            self.workers,
            representative=representative,
            step=self.step,
            rate_bytes_per_s=self._rate_bytes_per_s,
            weights=self._weights,
            trained=trained,
        )

    def begin_tally(self, fragment: int) -> None:
        """Count from now on what this node trains on until a fragment's next average."""
        self._tallies[fragment] = self.replica.tally()

    def _trained_since_last(self, index: int) -> float | torch.Tensor:
        """What a batch counted, on average, since a fragment's last exchange."""
        return (
            1.0 if self._weighting == "nodes" else self.replica.trained_since(self._tallies[index])
        )

    def _merge_if_arrived(self, index: int) -> None:
        exchange = self._in_flight[index]
        if self.step - exchange.step < self.current_delay():
            return
        if self.late == "continue" and not self._has_arrived_in_node(exchange):
            return
        self._merge(index)

    def _has_arrived_in_node(self, exchange: Exchange) -> bool:
        """Whether all workers of this node have the result: they must merge at the same step."""
        arrived, node = exchange.done(), self.workers.node
        if node.size == 1 and not self.replica.is_sharded:
            return arrived
        return node.agree(float(arrived), "min") == 1.0

    def _merge(self, index: int) -> None:
        exchange = self._in_flight.pop(index)
        start_s = self.workers.clock()
        exchange.wait()
        arrived_s = self.workers.clock()
        self.waiting_s += arrived_s - start_s
        exchange.report_unhealthy()
        if exchange.total_weight > 0:
            self._take_over(index, exchange)
        self.merging_s += self.workers.clock() - arrived_s

    def _take_over(self, index: int, exchange: Exchange) -> None:
        # A node whose parameters are broken has nothing worth keeping.
        rule = self.merge_rule if exchange.is_own_node_healthy else "mean"
        steps_passed = self.step - exchange.step
        do_all_count_alike = max(self._weights) == 1 and not exchange.is_measured
        total = exchange.total_weight
        num_healthy = int(total) if do_all_count_alike else exchange.num_healthy()
        kept = share_kept(rule, steps_passed=steps_passed, num_nodes=num_healthy, keep=self.keep)
        fragment = self.fragments[index]
        for place, (layout, wire) in enumerate(zip(fragment.layouts, fragment.wires, strict=True)):
            mean = exchange.mean[place]
            agreed = self.outers[index][place].step(mean) if self.outers[index] else mean
            wire.settle(agreed)
            merge(
                rule,
                layout,
                mean=agreed,
                sent=exchange.sent[place],
                steps_passed=steps_passed,
                kept=kept,
            )
        for layout, mean, sent in zip(
            self.replica.buffer_layouts(), exchange.buffers, exchange.buffers_sent, strict=True
        ):
            if steps_passed == 0:
                replace_buffers(layout, mean)
            else:
                merge_buffers(layout, mean, sent)
        if not exchange.is_own_node_healthy:
            self._heal_optimizer()

    def _heal_optimizer(self) -> None:
        num_reset = self.replica.reset_broken_optimizer_state()
        if num_reset:
            warnings.warn(
                f"{self.workers.node_names[self.workers.node_index]} took over the other nodes' "
                f"average at step {self.step}; its optimizer's state of {num_reset} parameters was "
                "not finite and was reset",
                RuntimeWarning,
                stacklevel=2,
            )

    def finish(self) -> None:
        """Merge what is under way, then average once more, so that all workers end equal."""
        for index in sorted(self._in_flight):
            self._merge(index)
        if self.workers.num_nodes > 1 and not self._is_settled:
            for index in range(self.num_fragments):
                self._average(index)
        self._is_settled = True
        settle_buffers(self.replica, self.workers.world)

    def _average(self, index: int) -> None:
        """Replace the parameters by the nodes' average, to the bit the same everywhere."""
        fragment, exchange = self.fragments[index], self._begin(index, representative=0)
        exchange.wait()
        exchange.report_unhealthy()
        if exchange.total_weight > 0:
            for layout, wire, mean in zip(
                fragment.layouts, fragment.wires, exchange.mean, strict=True
            ):
                wire.settle(mean)
                layout.unpack(mean)
            if not exchange.is_own_node_healthy:
                self._heal_optimizer()

    def schedule(self) -> Schedule:
        """One phase, which repeats itself after a period."""
        return Schedule(phases=(Phase("all", period=self.period),))

    def lockstep(self) -> Team:
        """The node's workers: they step with the same gradients, and merge at the same steps."""
        return self.workers.node

    def status(self) -> dict[str, float]:
        """The current period and delay."""
        return {"period": self.period, "delay": self.delay}

    def state_dict(self) -> dict[str, Any]:
        """Step, rotation, exchanges under way (they are waited for), wires and outer state."""
        return {
            **super().state_dict(),
            "num_exchanges": self._num_exchanges,
            "last_starts": list(self._last_starts),
            "is_settled": self._is_settled,
            "trained": (self.replica.num_batches, self.replica.trained, list(self._tallies)),
            "in_flight": {str(i): exchange.state_dict() for i, exchange in self._in_flight.items()},
            "wires": [[wire.state_dict() for wire in f.wires] for f in self.fragments],
            "outers": [[outer.state_dict() for outer in outers] for outers in self.outers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, or refuse it and change nothing."""
        self._check_state_dict(state)
        super().load_state_dict(state)
        # What is under way works on the wires, which are about to change.
        for exchange in self._in_flight.values():
            with contextlib.suppress(TeamError):  # what has failed does nothing any more
                exchange.wait()
        self._num_exchanges = state["num_exchanges"]
        self._last_starts = list(state["last_starts"])
        self._is_settled = state["is_settled"]
        self.replica.num_batches, self.replica.trained, tallies = state["trained"]
        self._tallies = list(tallies)
        self._in_flight = {
            int(i): Exchange.arrived(self.fragments[int(i)], saved, self.replica, self.workers)
            for i, saved in state["in_flight"].items()
        }
        for fragment, saved_wires in zip(self.fragments, state["wires"], strict=True):
            for wire, saved in zip(fragment.wires, saved_wires, strict=True):
                wire.load_state_dict(saved)
        for outers, saved_outers in zip(self.outers, state["outers"], strict=True):
            for outer, saved in zip(outers, saved_outers, strict=True):
                outer.load_state_dict(saved)

    def load_averaged(self, state: dict[str, Any]) -> None:
        """Go on from the nodes' average, which holds what was under way between them.

        The schedule and the outer optimizers go on. Rounding errors that narrow wires still carry
        are dropped, and what nodes have trained on is counted anew.
        """
        wires = [[saved | no_errors(saved) for saved in of_one] for of_one in state["wires"]]
        none: tuple[int, float | torch.Tensor] = (0, 0.0)
        state = state | {
            "in_flight": {},
            "is_settled": True,
            "wires": wires,
            "trained": (*none, [none] * self.num_fragments),
        }
        Periodic.load_state_dict(self, state)

    def _check_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse the state of other fragments, wires, nodes or of another model."""
        num_saved, num_own = len(state["wires"]), len(self.fragments)
        if num_saved != num_own:
            raise ValueError(
                f"the checkpoint has {count(num_saved, 'fragment')}, and {num_own} "
                f"{'is' if num_own == 1 else 'are'} attached"
            )
        for fragment, saved_wires, saved_outers in zip(
            self.fragments, state["wires"], state["outers"], strict=True
        ):
            if len(saved_wires) != len(fragment.wires):
                raise ValueError("the checkpoint's fragments are those of another model")
            for layout, wire, saved in zip(
                fragment.layouts, fragment.wires, saved_wires, strict=True
            ):
                wire.check_state_dict(saved)
                if saved:
                    check_sizes("wires", [saved["agreed"]], [layout])
            check_sizes("outer optimizers", [s["anchor"] for s in saved_outers], fragment.layouts)
        for index, saved in state["in_flight"].items():
            if saved["healthy"].numel() != self.workers.num_nodes:
                raise ValueError(
                    f"the checkpoint was saved on {count(saved['healthy'].numel(), 'node')}, and "
                    f"this job has {self.workers.num_nodes}"
                )
            check_sizes("exchanges under way", saved["sent"], self.fragments[int(index)].layouts)
            buffers = self.replica.buffer_layouts()
            if len(saved["buffers"]) != len(buffers):
                raise ValueError(
                    "the checkpoint's exchange under way was started with another setting than "
                    f"buffers={self.replica.buffer_mode!r}; attach with the same"
                )
            check_sizes("buffers under way", saved["buffers"], buffers)


def check_delay(delay: int, period: int) -> None:
    """Refuse a merge that would come after the next exchange has started."""
    if delay > period:
        raise ValueError(f"delay={delay} must not be longer than period={period}")
