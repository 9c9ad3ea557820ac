"""Colours, line dashes and markers that differ for colour-blind readers too.

The colours are those of M. Okabe and K. Ito, "Color Universal Design" (2008), without black and
yellow, which vanish on a dark and on a light page; a grey takes their place. No two things differ
by colour alone: lines have dashes and markers, and families of kernels have symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, GREY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#E69F00",
    "#56B4E9",
    "#CC79A7",
    "#808080",
)
_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")


@dataclass(frozen=True, kw_only=True)
class Style:
    """How one series is drawn, in charts and in legends."""

    colour: str
    dash: str = ""
    """A dash of plotly's; empty where there are marks and no line."""
    symbol: str = "circle"
    pattern: str = ""
    """Hatching of an area, as plotly names it."""

    @property
    def ink(self) -> str:
        """A colour for text on top of it."""
        return "#111111" if self.colour in (ORANGE, SKY) else "#ffffff"

    def faint(self, opacity: float = 0.15) -> str:
        """The colour as CSS, nearly transparent: for bands."""
        red, green, blue = (int(self.colour[place : place + 2], 16) for place in (1, 3, 5))
        return f"rgba({red},{green},{blue},{opacity})"


def styles_of(names: Sequence[str]) -> dict[str, Style]:
    """One style per name, by its place: no two of the first 35 are equal."""
    return {
        name: Style(
            colour=_COLOURS[place % len(_COLOURS)],
            dash=_DASHES[place % len(_DASHES)],
            symbol=_SYMBOLS[place % len(_SYMBOLS)],
        )
        for place, name in enumerate(names)
    }


RESOURCE_STYLES: dict[str, Style] = {
    "arithmetic": Style(colour=BLUE, dash="solid", symbol="circle"),
    "memory bandwidth": Style(colour=SKY, dash="dash", symbol="square"),
    "link bandwidth": Style(colour=VERMILION, dash="dot", symbol="diamond"),
    "link latency": Style(colour=ORANGE, dash="dashdot", symbol="triangle-up"),
    "host": Style(colour=PURPLE, dash="longdash", symbol="cross"),
    "stragglers": Style(colour=GREY, dash="solid", symbol="x"),
}
"""What can limit a step: the device blue, the links red, the rest apart from both."""

# One colour for what is alike, one symbol within it.
FAMILY_STYLES: dict[str, Style] = {
    "convolution": Style(colour=BLUE, symbol="circle"),
    "convolution_backward_data": Style(colour=BLUE, symbol="square"),
    "convolution_backward_weight": Style(colour=BLUE, symbol="diamond"),
    "matmul": Style(colour=VERMILION, symbol="circle"),
    "attention": Style(colour=VERMILION, symbol="square"),
    "batch_norm": Style(colour=GREEN, symbol="circle"),
    "layer_norm": Style(colour=GREEN, symbol="square"),
    "softmax": Style(colour=GREEN, symbol="diamond"),
    "pooling": Style(colour=SKY, symbol="circle"),
    "embedding": Style(colour=SKY, symbol="square"),
    "pointwise": Style(colour=ORANGE, symbol="circle"),
    "reduction": Style(colour=ORANGE, symbol="square"),
    "optimizer": Style(colour=PURPLE, symbol="circle"),
    "other": Style(colour=GREY, symbol="circle"),
}

TIME_STYLES: dict[str, Style] = {
    "compute": Style(colour=BLUE),
    "communication and waiting": Style(colour=ORANGE, pattern="/"),
    "host": Style(colour=PURPLE, pattern="."),
}
"""Where the time of a step goes."""

SPAN_STYLES: dict[str, Style] = {
    "forward": Style(colour=BLUE),
    "backward": Style(colour=SKY, pattern="\\"),
    "optimizer": Style(colour=PURPLE, pattern="."),
    "merge": Style(colour=GREEN, pattern="x"),
    "wait": Style(colour=GREY, pattern="/"),
    "communication": Style(colour=ORANGE, pattern="-"),
    "exchange": Style(colour=VERMILION, pattern="|"),
}
"""What a worker does during a step, as traces name it; communication of any kind is one."""
