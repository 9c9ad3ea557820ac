"""What may be chosen: strategies with their options, those closest to plain training first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from paceline.strategies import Strategy, make_strategy
from paceline.strategies.wire import WireName
from paceline.suggestion import suggestion

EXACT = ("sync", "sync-hierarchical")
"""Average every gradient before it is used: training is what one large batch gives."""
ALLOWED = (*EXACT, "local-sgd", "daso")
_WIRE_BYTES: dict[WireName, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}
WIRES: tuple[WireName, ...] = tuple(_WIRE_BYTES)


@dataclass(frozen=True)
class Candidate:
    """A strategy's name and the options that it would be given."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether every gradient is averaged over all workers before it is used."""
        return self.name in EXACT

    @property
    def load(self) -> float:
        """Bytes that an element of the model sends between nodes per step, about."""
        options = dict(self.options)
        wire: WireName = options.get("wire", "fp32")
        period: int = options.get("period", 1)
        return _WIRE_BYTES[wire] / period

    def make(self) -> Strategy:
        """The strategy."""
        return make_strategy(self.name, **dict(self.options))

    def __str__(self) -> str:
        shown = ", ".join(
            f"{key}={value}" for key, value in self.options if key in ("period", "delay", "wire")
        )
        return f"{self.name}({shown})" if shown else self.name

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "options": dict(self.options)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """What :meth:`to_dict` made."""
        return cls(values["name"], tuple(values["options"].items()))


def names_from(allow: Sequence[str] | str) -> tuple[str, ...]:
    """The names of the strategies that may be chosen, checked."""
    given = allow.split(",") if isinstance(allow, str) else list(allow)
    names = [name.strip() for name in given if name.strip()]
    for name in names:
        if name not in ALLOWED:
            raise ValueError(f"auto cannot choose {name!r}: {suggestion(name, ALLOWED)}")
    if not names:
        raise ValueError(f"auto has nothing to choose from; allow one of {', '.join(ALLOWED)}")
    return tuple(name for name in ALLOWED if name in names)


def wires_from(wires: Sequence[str] | str) -> tuple[WireName, ...]:
    """The wires that may be chosen, checked."""
    given = [name.strip() for name in (wires.split(",") if isinstance(wires, str) else wires)]
    if not given or not set(given) <= set(WIRES):
        raise ValueError(f"wires={wires!r} must be some of {', '.join(WIRES)}")
    return tuple(wire for wire in WIRES if wire in given)


def candidates(
    names: Sequence[str], *, max_period: int, wires: Sequence[WireName], node_sizes: Sequence[int]
) -> list[Candidate]:
    """Everything that may be chosen, in order: what changes training the least comes first.

    Longer periods and delays let nodes drift further apart, narrow wires round what they send.

    Args:
        names: Allowed strategies.
        max_period: The most steps from one exchange to the next.
        wires: Allowed wires.
        node_sizes: The number of workers of each node.
    """
    exact = [Candidate(name) for name in names if name in EXACT]
    if max(node_sizes) == 1:  # then both do the same
        exact = exact[:1]
    local = sorted(_local(names, max_period, wires), key=_departure)
    return [*exact, *local]


def _local(names: Sequence[str], max_period: int, wires: Sequence[WireName]) -> Iterator[Candidate]:
    for period in _periods(max_period):
        for wire in wires:
            common = (("period", period), ("wire", wire))
            if "local-sgd" in names:
                yield Candidate("local-sgd", common)
            if "daso" in names:
                for delay in sorted({max(1, period // 2), period}):
                    # A result that came late would be merged at a step that depends on timing;
                    # a resumed run could not repeat that.
                    own = (("delay", delay), ("late", "wait"), ("warmup_steps", 0))
                    yield Candidate("daso", (*common, *own))


def _periods(most: int) -> list[int]:
    """4, 8, 16, … and the most itself."""
    powers = [2**exponent for exponent in range(2, most.bit_length())]
    return [*(power for power in powers if power < most), most]


def _departure(candidate: Candidate) -> tuple[int, int, int]:
    options = dict(candidate.options)
    return options["period"], options.get("delay", 0), WIRES.index(options["wire"])
