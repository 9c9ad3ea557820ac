"""The pages of the documentation and the code blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^( *)```(.*)$")
_NEEDS = re.compile(r"^ *<!-- needs: (.+) -->$")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    """Of its first line of code, counted from 1."""
    language: str
    code: str
    needs: str | None
    """What the suite does not have; None: the suite runs it."""

    @property
    def place(self) -> str:
        """Where a reader finds it."""
        return f"{self.page}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file that the reader is told to save it as: its first line, or the cluster's name."""
        pattern = r"# (\S+\.py)$" if self.language == "python" else r'name = "(\S+)"$'
        found = re.match(pattern, self.code.splitlines()[0])
        if found is None:
            return None
        return found[1] if self.language == "python" else f"{found[1]}.toml"

    def commands(self) -> list[str]:
        """The lines of a console block that a reader types."""
        lines = self.code.splitlines()
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def page_names() -> list[str]:
    """The README and every page of the site, by its path from the repository's root."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(str(page.relative_to(ROOT)) for page in pages)]


def blocks_of(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    start, language = 0, ""
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if start == 0:
            start, language = number, fence[2]
            continue
        before = _NEEDS.match(lines[start - 2]) if start > 1 else None
        yield Block(
            page=page,
            line=start + 1,
            language=language,
            code="\n".join(each.removeprefix(fence[1]) for each in lines[start : number - 1]),
            needs=None if before is None else before[1],
        )
        start = 0
    assert start == 0, f"{page}:{start}: a block without an end"


def all_blocks() -> list[Block]:
    """The blocks of all pages."""
    return [block for page in page_names() for block in blocks_of(page)]
