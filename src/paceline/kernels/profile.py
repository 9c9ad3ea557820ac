"""A profile: what kernels took on one device, with the facts of the machine.

The file is gzip over lines of JSON, so that it can be read anywhere, appended to while measuring,
and shares nothing with pickle. An object states facts; later ones add to earlier ones. A list is
one kernel: ``[op, arguments, outputs, math, seconds, workspace_bytes, sources]`` with ``seconds``
null for one that is planned and not yet measured; a later line replaces an earlier one.
docs/reference/kernel-profile.md describes every field.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from paceline.reading import lines, parse_json
from paceline.steps.kernel import Kernel

FORMAT = "paceline-kernels"
VERSION = 1
SUFFIX = ".kernels.gz"
# The H200's has 191,000 lines, 30 million characters, and 22,000 in its longest line.
_MOST_CHARACTERS = 512 << 20
_LONGEST_LINE = 4 << 20
_MOST_SECONDS = 1e6
_MOST_WORKSPACE = 1 << 50


@dataclass(frozen=True, slots=True)
class Timing:
    """What was measured of one kernel."""

    seconds: float | None
    """None if it is planned only."""
    workspace_bytes: int = 0
    """Memory that it needs while it runs, besides its operands and outputs."""
    sources: tuple[str, ...] = ()
    """The networks that it was taken from; none for a random neighbour."""


@dataclass
class Profile:
    """Facts of a machine and its table of kernels."""

    facts: dict[str, Any] = field(default_factory=dict)
    timings: dict[Kernel, Timing] = field(default_factory=dict)

    def measured(self) -> dict[Kernel, Timing]:
        """The kernels with a time."""
        return {kernel: each for kernel, each in self.timings.items() if each.seconds is not None}

    def planned(self) -> list[Kernel]:
        """The kernels without one, in order."""
        return [kernel for kernel, each in self.timings.items() if each.seconds is None]

    def save(self, path: Path) -> None:
        """Write the whole profile, in place of what was there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(path.suffix + ".part")
        with gzip.open(partial, "wt", encoding="utf-8", compresslevel=9) as file:
            file.write(_facts_line({"format": FORMAT, "version": VERSION, **self.facts}))
            file.writelines(_kernel_line(kernel, each) for kernel, each in self.timings.items())
        partial.replace(path)


def append(path: Path, facts: Mapping[str, Any], timings: Mapping[Kernel, Timing]) -> None:
    """Add facts and kernels at the end of a profile: what has been measured is safe."""
    with gzip.open(path, "at", encoding="utf-8") as file:
        if facts:
            file.write(_facts_line(facts))
        file.writelines(_kernel_line(kernel, each) for kernel, each in timings.items())


def load_profile(path: Path | str) -> Profile:
    """Read a profile; ValueError with a sentence if it is not one, or is damaged."""
    profile = Profile()
    with reading(Path(path)) as file:
        _read_lines(profile, file)
    return profile


@contextmanager
def reading(path: Path) -> Iterator[Iterable[str]]:
    """The lines of a profile; what is wrong with them becomes a ValueError with a sentence."""
    if not path.is_file():
        raise ValueError(f"There is no profile {path}; make one with `paceline measure kernels`.")
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            own = lines(file, most_characters=_MOST_CHARACTERS, longest=_LONGEST_LINE)
            first = next(own, "")
            _check_header(first)
            yield chain([first], own)
    except (EOFError, zlib.error) as problem:
        raise ValueError(
            f"The profile {path} is cut off or damaged; measure it again, or copy it again."
        ) from problem
    except _OtherVersionError as problem:
        raise ValueError(f"The profile {path} {problem}") from None
    except (gzip.BadGzipFile, ValueError, KeyError, TypeError, RecursionError) as problem:
        detail = "" if isinstance(problem, gzip.BadGzipFile) else _in_words(problem)
        raise ValueError(f"{path} is not a kernel profile of paceline{detail}.") from problem


class _OtherVersionError(ValueError):
    """It is a profile, and of another version."""


def _in_words(problem: Exception) -> str:
    """What is wrong with a line, where that tells more than that it is not JSON."""
    if isinstance(problem, json.JSONDecodeError | UnicodeDecodeError):
        return ""
    return f": {str(problem)[:200]}"


def _check_header(line: str) -> None:
    header = parse_json(line)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError("its first line is not a profile's")
    if header["version"] != VERSION:
        raise _OtherVersionError(
            f"has schema version {header['version']}, this paceline reads {VERSION}; measure "
            "again with `paceline measure kernels`."
        )


def _read_lines(profile: Profile, lines: Iterable[str]) -> None:
    for line in lines:
        value = parse_json(line, with_infinity=True)  # arguments such as a mask's -Infinity
        if isinstance(value, dict):
            profile.facts |= value
            continue
        if not isinstance(value, list) or len(value) != 7:
            raise ValueError(f"neither facts nor a kernel: {line[:40]}")
        *kernel_parts, seconds, workspace_bytes, sources = value
        kernel = Kernel.from_parts(kernel_parts)
        profile.timings[kernel] = timing(seconds, workspace_bytes, sources)


def timing(seconds: Any, workspace_bytes: Any, sources: Any) -> Timing:
    """What a line says of a kernel, checked; ValueError if it says nothing that could be."""
    if seconds is not None:
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds < _MOST_SECONDS:
            raise ValueError(f"{str(seconds)[:40]} is no time of a kernel")
    if not isinstance(workspace_bytes, int) or not 0 <= workspace_bytes < _MOST_WORKSPACE:
        raise ValueError(f"{str(workspace_bytes)[:40]} is no size of a workspace")
    if not isinstance(sources, list) or not all(isinstance(each, str) for each in sources):
        raise ValueError(f"{str(sources)[:40]} are no names of networks")
    return Timing(seconds, workspace_bytes, tuple(sources))


def _facts_line(facts: Mapping[str, Any]) -> str:
    return json.dumps(dict(facts), separators=(",", ":")) + "\n"


def _kernel_line(kernel: Kernel, timing: Timing) -> str:
    seconds = None if timing.seconds is None else float(f"{timing.seconds:.5g}")
    value = [*kernel.to_parts(), seconds, timing.workspace_bytes, list(timing.sources)]
    return json.dumps(value, separators=(",", ":")) + "\n"
