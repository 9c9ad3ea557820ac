"""The terminal: what a name, a path or an error says is shown there, and never obeyed.

Names come from other people's files. One with ``[red]`` is no markup, one with an escape sequence
moves no cursor and sets no title, and one that turns the direction of writing around stays as it
is: characters that cannot be seen are shown as Python would write them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from paceline.reading import visible


def say(text: str, *, file: IO[str] | None = None) -> None:
    """Write a line of plain text.

    Args:
        text: The line, with whatever the user or a file put in.
        file: Where to; by default standard output.
    """
    target = sys.stdout if file is None else file
    target.write(visible(text) + "\n")


def note(text: str) -> None:
    """Write a line of plain text to standard error.

    Args:
        text: The line.
    """
    say(text, file=sys.stderr)


class Screen(Console):
    """A console that takes text for text: no markup, no emoji codes, no control characters."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **settings: Any) -> Text:
        """As the base class, of what can be seen; before widths are known."""
        return super().render_str(visible(text), **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As the base class; also of texts that were made elsewhere."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)
