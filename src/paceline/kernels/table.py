"""The measured kernels of a profile, to be looked up one by one.

A profile has tens of thousands of kernels and a step a few hundred: lines stay text until somebody
asks for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from paceline.kernels.profile import Timing, reading
from paceline.steps.kernel import Kernel

_LINE = re.compile(r"(.*),([^,]+),([^,]+,\[[^\[\]]*\]\])\n")


class Table(Mapping[Kernel, Timing]):
    """Kernels and their timings, by the text that a profile has for a kernel."""

    def __init__(self, lines: Mapping[str, str]) -> None:
        self._lines = lines

    def __getitem__(self, kernel: Kernel) -> Timing:
        parts = json.dumps(kernel.to_parts(), separators=(",", ":"))
        return _timing(self._lines[parts[:-1]])

    def __iter__(self) -> Iterator[Kernel]:
        return (Kernel.from_parts(json.loads(text + "]")) for text in self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def items_of(
        self, is_wanted: Callable[[str], bool], *, dtype: str = ""
    ) -> Iterator[tuple[Kernel, Timing]]:
        """The kernels of some operators, on tensors of a dtype if one is given."""
        operand = f'"@{dtype}'
        for text, timing in self._lines.items():
            if is_wanted(text[2 : text.index('"', 2)]) and operand in text:
                yield Kernel.from_parts(json.loads(text + "]")), _timing(timing)


def load_table(path: Path) -> Table:
    """The measured kernels of a profile that :meth:`Profile.save` wrote."""
    lines: dict[str, str] = {}
    with reading(path) as file:
        for line in file:
            if line.startswith("["):
                # Behind the kernel come its seconds, the bytes of its workspace and its networks.
                kernel, seconds, rest = _LINE.fullmatch(line).groups()  # type: ignore[union-attr]
                if seconds == "null":
                    lines.pop(kernel, None)
                else:
                    lines[kernel] = f"[{seconds},{rest}"
    return Table(lines)


def _timing(text: str) -> Timing:
    seconds, workspace_bytes, sources = json.loads(text)
    return Timing(seconds, workspace_bytes, tuple(sources))
