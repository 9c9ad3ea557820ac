"""Numbers in the sentences and tables of reports."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.cluster.units import format_duration, format_size


def digits(value: float) -> str:
    """Three digits: 1,230 or 4.57 or 0.081."""
    return f"{float(f'{value:.3g}'):,.12g}"


def duration(seconds: float) -> str:
    """Three digits with a unit: 12.3 ms."""
    return format_duration(float(f"{seconds:.3g}"))


def run_length(seconds: float) -> str:
    """How long a run takes: 12.3 s, 40.5 minutes, 8.25 hours, 3.1 days."""
    for unit, unit_s in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * unit_s:
            return f"{digits(seconds / unit_s)} {unit}"
    return duration(seconds)


def size(num_bytes: float) -> str:
    """Three digits with a unit: 3.19 GB."""
    return format_size(int(float(f"{num_bytes:.3g}")))


def with_range(seconds: float, low_s: float, high_s: float) -> str:
    """A duration and between what it lies: 12.3 ms (11 ms to 13.6 ms)."""
    return f"{duration(seconds)} ({duration(low_s)} to {duration(high_s)})"


def counted(number: int, noun: str) -> str:
    """1 worker, or 1,024 workers."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def joined(words: Sequence[str]) -> str:
    """One, two and three."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
