"""The measured kernels of a profile, to be looked up one by one.

A profile has tens of thousands of kernels and a step a few hundred: lines stay text until somebody
asks for them.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from paceline.kernels.profile import Timing, reading, timing
from paceline.reading import parse_json
from paceline.steps.kernel import Kernel


class Table(Mapping[Kernel, Timing]):
    """Kernels and their timings, by the text that a profile has for a kernel."""

    def __init__(self, lines: Mapping[str, str]) -> None:
        self._lines = lines

    def __getitem__(self, kernel: Kernel) -> Timing:
        parts = json.dumps(kernel.to_parts(), separators=(",", ":"))
        return _timing(self._lines[parts[:-1]])

    def __iter__(self) -> Iterator[Kernel]:
        return map(_kernel, self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def some_of(
        self, is_wanted: Callable[[str], bool], *, dtype: str, most: int
    ) -> dict[Kernel, Timing]:
        """The kernels of some operators on tensors of a dtype; of many, a random choice."""
        operand = f'"@{dtype}'
        found = [
            text
            for text in self._lines
            if is_wanted(text[2:].partition('"')[0]) and operand in text
        ]
        if len(found) > most:
            # Not every second one: forward and backward kernels often take turns.
            found = random.Random(most).sample(found, most)
        return {_kernel(text): _timing(self._lines[text]) for text in found}


def load_table(path: Path) -> Table:
    """The measured kernels of a profile that :meth:`Profile.save` wrote."""
    lines: dict[str, str] = {}
    with reading(path) as file:
        for line in file:
            if line.startswith("["):
                # Behind the kernel come its seconds, the bytes of its workspace and its networks.
                measured, _, networks = line.rpartition(",[")
                kernel, seconds, workspace_bytes = measured.rsplit(",", 2)
                if seconds == "null":
                    lines.pop(kernel, None)
                elif not 0 <= float(seconds) < math.inf:
                    raise ValueError(f"{seconds[:40]} is no time of a kernel")
                else:
                    lines[kernel] = f"[{seconds},{workspace_bytes},[{networks}"
    return Table(lines)


def _timing(text: str) -> Timing:
    try:
        return timing(*parse_json(text))
    except (ValueError, TypeError):
        raise ValueError(f"a kernel of the profile is damaged: {text[:80]!r}") from None


def _kernel(text: str) -> Kernel:
    try:
        return Kernel.from_parts(parse_json(text + "]", with_infinity=True))
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"a kernel of the profile is damaged: {text[:80]!r}") from None
