"""One thing that was looked at: what was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Topic = Literal[
    "backends", "environment", "links", "clocks", "versions", "limits", "threads", "lab", "job"
]
Level = Literal["ok", "note", "warning", "broken"]
"""``note`` is worth knowing; a ``warning`` makes training slow or fragile; ``broken`` stops it."""

_LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "broken")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found about one topic."""

    topic: Topic
    level: Level
    text: str
    remedy: str = ""
    """One sentence: what to change. Every finding that is not ``ok`` or a ``note`` has one."""
    workers: tuple[int, ...] = ()
    """The ranks it is about, in a job; none: all of them."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def ok(topic: Topic, text: str) -> Finding:
    """All is well."""
    return Finding(topic=topic, level="ok", text=text)


def note(topic: Topic, text: str, remedy: str = "") -> Finding:
    """Worth knowing."""
    return Finding(topic=topic, level="note", text=text, remedy=remedy)


def warning(topic: Topic, text: str, remedy: str) -> Finding:
    """It works, but slowly, or not in every job."""
    return Finding(topic=topic, level="warning", text=text, remedy=remedy)


def broken(topic: Topic, text: str, remedy: str) -> Finding:
    """Training will not work like this."""
    return Finding(topic=topic, level="broken", text=text, remedy=remedy)


def is_broken(findings: Iterable[Finding]) -> bool:
    """Whether anything is."""
    return any(finding.level == "broken" for finding in findings)


def worst(findings: Iterable[Finding]) -> Level:
    """The gravest level among them."""
    return max((finding.level for finding in findings), key=_LEVELS.index, default="ok")
