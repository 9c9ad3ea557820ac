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
        return self.kernels_of(lambda op: True)

    def __len__(self) -> int:
        return len(self._lines)

    def kernels_of(self, is_wanted: Callable[[str], bool]) -> Iterator[Kernel]:
        """The kernels of some operators."""
        for text in self._lines:
            if is_wanted(text[2 : text.index('"', 2)]):
                yield Kernel.from_parts(json.loads(text + "]"))


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
