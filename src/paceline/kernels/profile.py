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
from pathlib import Path
from typing import Any

from paceline.steps.kernel import Kernel

FORMAT = "paceline-kernels"
VERSION = 1
SUFFIX = ".kernels.gz"


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
            _check_header(path, file.readline())
            file.seek(0)
            yield file
    except (EOFError, zlib.error) as problem:
        raise ValueError(
            f"The profile {path} is cut off or damaged; measure it again, or copy it again."
        ) from problem
    except (gzip.BadGzipFile, UnicodeDecodeError, json.JSONDecodeError, KeyError) as problem:
        raise ValueError(f"{path} is not a kernel profile of paceline.") from problem


def _check_header(path: Path, line: str) -> None:
    header = json.loads(line)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"{path} is not a kernel profile of paceline.")
    if header["version"] != VERSION:
        raise ValueError(
            f"The profile {path} has schema version {header['version']}, this paceline reads "
            f"{VERSION}; measure again with `paceline measure kernels`."
        )


def _read_lines(profile: Profile, lines: Iterable[str]) -> None:
    for line in lines:
        value = json.loads(line)
        if isinstance(value, dict):
            profile.facts |= value
            continue
        if not isinstance(value, list) or len(value) != 7:
            raise KeyError(f"neither facts nor a kernel: {line[:40]}")
        *kernel_parts, seconds, workspace_bytes, sources = value
        kernel = Kernel.from_parts(kernel_parts)
        profile.timings[kernel] = Timing(seconds, workspace_bytes, tuple(sources))


def _facts_line(facts: Mapping[str, Any]) -> str:
    return json.dumps(dict(facts), separators=(",", ":")) + "\n"


def _kernel_line(kernel: Kernel, timing: Timing) -> str:
    seconds = None if timing.seconds is None else float(f"{timing.seconds:.5g}")
    value = [*kernel.to_parts(), seconds, timing.workspace_bytes, list(timing.sources)]
    return json.dumps(value, separators=(",", ":")) + "\n"
