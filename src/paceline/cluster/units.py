"""Quantities with their units, as people write them, and the base units paceline computes in.

Inside paceline a bandwidth is in bytes per second, a duration in seconds, a size in bytes and an
arithmetic speed in FLOP/s. Text such as ``"100 Mbit/s"`` exists only at the edge, and this module
is that edge. Bits have to be spelt out: ``Mb`` is read as megabit by half of the world and as
megabyte by the other half, and the two differ by a factor of eight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

_YEAR_S = 365.25 * 86_400
_LONGEST_CLOCK_S = 1e13
_LONGEST_TEXT = 200
_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_NUMBER_AND_UNIT = re.compile(rf"\s*({_NUMBER})\s*([^\W\d_].*?)?\s*")

_DECIMAL = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BYTES = {f"{prefix}B": Fraction(1000) ** power for prefix, power in _DECIMAL.items()} | {
    f"{prefix}iB": Fraction(1024) ** power
    for prefix, power in {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}.items()
}
_BITS = {f"{prefix}bit": Fraction(1000) ** power / 8 for prefix, power in _DECIMAL.items()}


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A kind of quantity: its units, and what to say about a text that is not one of its kind."""

    noun: str
    units: Mapping[str, Fraction]  # the base unit first
    spellings: Mapping[str, Fraction]  # further ones, accepted and never written
    accepted: str  # with {number} and {prefix} where the user's own go
    number: str  # where the user's text has none
    prefix: str = ""
    zero: bool = False

    def parse(self, text: object) -> Fraction:
        """The quantity in base units, exactly."""
        if isinstance(text, int | float) and not isinstance(text, bool):
            raise ValueError(f"{text!r} has no unit: write {self.hint()}")
        if isinstance(text, str) and len(text) > _LONGEST_TEXT:
            # Digits by the million take minutes to read.
            raise ValueError(f"'{text[:20]}…' is too long for a {self.noun}: write {self.hint()}")
        match = _NUMBER_AND_UNIT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"{text!r} is not a {self.noun}: write {self.hint()}")
        number, unit = match[1], match[2] or ""
        scale = self.units.get(unit) or self.spellings.get(unit) or self.spellings.get(unit.lower())
        if scale is None:
            problem = f"is not a {self.noun}" if unit else "has no unit"
            hint = self.hint(number.lstrip("+-"), unit[:1].upper())
            raise ValueError(f"{text!r} {problem}: write {hint}")
        value = Fraction(number) * scale
        if value < 0 or (value == 0 and not self.zero):
            sign = "negative" if value < 0 else "zero"
            raise ValueError(f"{text!r} is {sign}: write {self.hint()}")
        return value

    def parse_float(self, text: object) -> float:
        """The quantity in base units, rounded once."""
        value = self.parse(text)
        rounded = _rounded(value)
        if rounded == math.inf:
            raise ValueError(f"{text!r} is too large: write {self.hint()}")
        if rounded == 0 and value:
            raise ValueError(f"{text!r} is too small: write {self.hint()}")
        return rounded

    def hint(self, number: str = "", prefix: str = "") -> str:
        """What to write instead, with the user's own number and prefix where they make sense."""
        known = prefix if prefix in ("M", "G", "T", "P") else self.prefix
        return self.accepted.format(number=number or self.number, prefix=known)

    def write(self, value: float) -> str:
        """The shortest text that parses back to exactly ``value``."""
        value = float(value)  # a NumPy number's repr is not a number's text
        candidates = []
        for unit, scale in self.units.items():
            # From the decimal digits, not the binary ones: 3.4e-06 s are then 3.4 us.
            number = repr(_rounded(Fraction(repr(value)) / scale)).removesuffix(".0")
            # Scaling rounds, and the text may be off in the last place. The base unit does not
            # scale, so there is always a text that is exact.
            if number != "inf" and _rounded(Fraction(number) * scale) == value:
                candidates.append(f"{number} {unit}")
        return min(candidates, key=len)


def _rounded(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _format(value: float, units: Mapping[str, Fraction]) -> str:
    """Four significant digits, in the largest unit that leaves at least 1 before the point."""
    by_scale = sorted(units.items(), key=lambda item: item[1])
    fitting = [(unit, scale) for unit, scale in by_scale if value >= scale]
    unit, scale = (fitting or by_scale)[-1 if fitting else 0]
    scaled = value / float(scale)
    return f"{scaled:.4g} {unit}" if scaled < 9999.5 else f"{scaled:.0f} {unit}"


_BANDWIDTH = _Kind(
    noun="bandwidth",
    units={f"{unit}/s": scale for unit, scale in (_BYTES | _BITS).items()},
    # tc writes 100mbit and 1gbit. "bit" leaves no doubt, so case and "/s" are free there.
    spellings={f"{unit.lower()}{end}": scale for unit, scale in _BITS.items() for end in ("", "/s")}
    | {"KB/s": Fraction(1000)},
    accepted="'{number} {prefix}bit/s' for bits or '{number} {prefix}B/s' for bytes",
    number="100",
    prefix="M",
)
_DURATION = _Kind(
    noun="duration",
    units={
        "s": Fraction(1),
        "ms": Fraction(1, 10**3),
        "us": Fraction(1, 10**6),
        "ns": Fraction(1, 10**9),
    },
    spellings={
        "\N{MICRO SIGN}s": Fraction(1, 10**6),
        "\N{GREEK SMALL LETTER MU}s": Fraction(1, 10**6),
    },
    accepted="'{number} us', '{number} ms' or '{number} s'",
    number="5",
    zero=True,
)
_SIZE = _Kind(
    noun="size",
    units=_BYTES,
    spellings={"KB": Fraction(1000)},
    accepted="'{number} {prefix}B' or '{number} {prefix}iB'",
    number="80",
    prefix="G",
)
_SPEED = _Kind(
    noun="speed",
    units={f"{prefix}FLOP/s": Fraction(1000) ** power for prefix, power in _DECIMAL.items()},
    spellings={},
    accepted="'{number} {prefix}FLOP/s'",
    number="19.5",
    prefix="T",
)

_DECIMAL_BYTES = {unit: scale for unit, scale in _BYTES.items() if "i" not in unit}
_BYTES_PER_S = {f"{unit}/s": scale for unit, scale in _DECIMAL_BYTES.items()}
# Network cards are sold by the Gbit/s, so eight of 400 Gbit/s are 3200 and not 3.2 Tbit/s.
_BITS_PER_S = {f"{unit}/s": _BITS[unit] for unit in ("bit", "kbit", "Mbit", "Gbit")}


def parse_bandwidth(text: object) -> float:
    """Bytes per second of ``"100 Mbit/s"``, ``"1gbit"`` (as tc writes it) or ``"25 GB/s"``."""
    return _BANDWIDTH.parse_float(text)


def parse_duration(text: object) -> float:
    """Seconds of ``"5 us"``, ``"0.2 ms"`` or ``"1 s"``; zero is a duration."""
    return _DURATION.parse_float(text)


def parse_size(text: object) -> int:
    """Bytes of ``"80 GB"`` or ``"512 MiB"``, rounded to a whole number."""
    size_bytes = round(_SIZE.parse(text))
    if size_bytes == 0:
        raise ValueError(f"{text!r} is less than one byte: write {_SIZE.hint()}")
    return size_bytes


def parse_speed(text: object) -> float:
    """FLOP/s of ``"19.5 TFLOP/s"``."""
    return _SPEED.parse_float(text)


def format_bandwidth(bandwidth_bytes_per_s: float, *, bits: bool = False) -> str:
    """A bandwidth for people: ``"25 GB/s"``, or with ``bits`` ``"200 Gbit/s"``."""
    return _format(bandwidth_bytes_per_s, _BITS_PER_S if bits else _BYTES_PER_S)


def format_duration(duration_s: float) -> str:
    """A duration for people: ``"5 us"``."""
    return _format(duration_s, _DURATION.units) if duration_s else "0 s"


def format_clock(duration_s: float) -> str:
    """A long duration for people: ``"3:12:05"``, or ``"2 days, 3:12:05"``."""
    if not duration_s < _LONGEST_CLOCK_S:
        return f"{duration_s / _YEAR_S:.3g} years"
    return str(timedelta(seconds=round(duration_s)))


def format_size(size_bytes: int) -> str:
    """A size for people, in decimal units: ``"80 GB"``."""
    return _format(size_bytes, _DECIMAL_BYTES)


def format_speed(flop_per_s: float) -> str:
    """An arithmetic speed for people: ``"19.5 TFLOP/s"``."""
    return _format(flop_per_s, _SPEED.units)


def write_bandwidth(bandwidth_bytes_per_s: float) -> str:
    """The shortest text that :func:`parse_bandwidth` reads as exactly this number."""
    return _BANDWIDTH.write(bandwidth_bytes_per_s)


def write_duration(duration_s: float) -> str:
    """The shortest text that :func:`parse_duration` reads as exactly this number."""
    return _DURATION.write(duration_s)


def write_size(size_bytes: int) -> str:
    """The shortest whole number and unit that :func:`parse_size` reads as exactly this number."""
    whole = [(size_bytes / scale, unit) for unit, scale in _BYTES.items()]
    return min((f"{count} {unit}" for count, unit in whole if count.denominator == 1), key=len)


def write_speed(flop_per_s: float) -> str:
    """The shortest text that :func:`parse_speed` reads as exactly this number."""
    return _SPEED.write(flop_per_s)
