"""What could be done instead of plain DDP: strategies with their options, nodes, batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.cluster import Cluster
from paceline.strategies import Strategy, make_strategy, name_and_options, strategy_names

WIRES = ("fp32", "bf16", "int8")
"""From the widest to the narrowest."""
BUCKET_SIZES = (4 << 20, 100 << 20)
"""Sizes of gradient buckets to try beside the default."""
_ALL_NODES_UP_TO = 8


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A strategy with its options."""

    strategy: str = "sync"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.strategy, *sorted(self.options.items())))

    @property
    def period(self) -> int:
        """B: steps that nodes train apart; 0 where every gradient is averaged."""
        return int(self._option("period"))

    @property
    def delay(self) -> int:
        """W: steps from the start of an exchange to its merge."""
        return int(self._option("delay"))

    @property
    def staleness(self) -> int:
        """Steps of a node that the others do not see yet, at most."""
        return self.period + self.delay

    @property
    def wire(self) -> str:
        """The form in which parameters travel between nodes."""
        return str(self.options.get("wire", WIRES[0]))

    def replaced(self, **options: Any) -> Variant:
        """The same strategy with some other options."""
        return Variant(strategy=self.strategy, options={**self.options, **options})

    def _option(self, name: str) -> Any:
        return getattr(make_strategy(self.strategy, **self.options), name, 0)


PLAIN = Variant()
"""What torch's DDP does."""
_LADDER = (
    Variant(strategy="sync-hierarchical"),
    Variant(strategy="daso", options={"period": 4, "delay": 1}),
    Variant(strategy="local-sgd", options={"period": 8}),
    Variant(strategy="daso", options={"period": 8, "delay": 2}),
    Variant(strategy="daso", options={"period": 16, "delay": 4}),
    Variant(strategy="diloco", options={"period": 32}),
)


def variants_of(strategies: Sequence[str | Strategy] | None) -> list[Variant]:
    """Variants to try after plain DDP, those that change training least first.

    Args:
        strategies: Strategies that may be used, by their names with any options, as objects with
            theirs; None for all that are known well enough to be advised.

    """
    if strategies is None:
        return list(_LADDER)
    names = [each for each in strategies if isinstance(each, str)]
    unknown = sorted(set(names) - set(strategy_names()))
    if unknown:
        raise ValueError(
            f"there is no strategy {unknown[0]!r}; give some of {', '.join(strategy_names())}"
        )
    known = [variant for variant in _LADDER if variant.strategy in names]
    others = set(names) - {variant.strategy for variant in known} - {PLAIN.strategy}
    own = [Variant(strategy=name) for name in strategy_names() if name in others]
    given = [_variant_of(each) for each in strategies if not isinstance(each, str)]
    different = dict.fromkeys(each for each in (*known, *own, *given) if each != PLAIN)
    return sorted(different, key=lambda variant: variant.staleness)


def _variant_of(strategy: Strategy) -> Variant:
    name, options = name_and_options(strategy)
    return Variant(strategy=name, options=options)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to train: where, on how many nodes, with which batch, how."""

    cluster: Cluster
    """With its number of nodes."""
    batch: int
    """Per worker."""
    variant: Variant = PLAIN

    def __hash__(self) -> int:
        return hash((self.place, self.variant))

    @property
    def global_batch(self) -> int:
        """Samples per step of all workers."""
        return self.batch * self.cluster.num_workers

    @property
    def place(self) -> tuple[str, int, int]:
        """All but the strategy."""
        return self.cluster.name, self.cluster.num_nodes, self.batch

    def change_of_training(self) -> tuple[int, int, bool, int, int]:
        """How much it changes training; what is less is preferred among equally good ones."""
        wire = WIRES.index(self.variant.wire) if self.variant.wire in WIRES else len(WIRES)
        is_other = self.variant != PLAIN
        return self.variant.staleness, wire, is_other, self.global_batch, self.cluster.num_nodes


def node_counts(cluster: Cluster) -> list[int]:
    """Numbers of nodes to try: every one up to eight, then two per doubling, and all."""
    most = cluster.num_nodes
    if not cluster.is_uniform:  # one number cannot say which nodes to leave out
        return [most]
    counts = {*range(1, min(most, _ALL_NODES_UP_TO) + 1), most}
    power = _ALL_NODES_UP_TO
    while power < most:
        counts |= {count for count in (power, power * 3 // 2) if count <= most}
        power *= 2
    return sorted(counts)


def between(counts: list[int], chosen: int) -> Iterator[int]:
    """Numbers of nodes between the chosen one and its neighbours, at most eight on each side."""
    place = counts.index(chosen)
    low = counts[place - 1] if place else chosen
    high = counts[place + 1] if place + 1 < len(counts) else chosen
    for first, last in ((low, chosen), (chosen, high)):
        inner = range(first + 1, last)
        yield from inner[:: max(1, -(-len(inner) // 8))]
