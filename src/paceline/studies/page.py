"""A page of charts: one HTML file that needs no network.

Text goes in as plain text and is escaped here; figures are plotly's plain data, and the page's own
script draws them in the colours of the reader's theme.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from paceline.studies.palette import Style
from paceline.version import __version__

Figure = dict[str, Any]
"""``data`` and ``layout`` as plotly takes them. Names of the user go through :func:`chart_text`."""

_SWATCHES = {
    "circle": '<circle cx="14" cy="7" r="4"/>',
    "square": '<path d="M10 3h8v8h-8z"/>',
    "diamond": '<path d="M14 2l5 5-5 5-5-5z"/>',
    "triangle-up": '<path d="M14 2l5 9H9z"/>',
    "cross": '<path d="M12.5 2h3v3.5H19v3h-3.5V12h-3V8.5H9v-3h3.5z"/>',
    "x": '<path d="M11 2l3 3 3-3 2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3-3-3z"/>',
    "star": '<path d="M14 1l1.7 4H20l-3.4 2.6 1.3 4.4-3.9-2.6L10.1 12l1.3-4.4L8 5h4.3z"/>',
}
_DASH_ARRAYS = {
    "": "",
    "solid": "none",
    "dash": "6 3",
    "dot": "2 3",
    "dashdot": "6 2 2 2",
    "longdash": "9 3",
}
_HATCHINGS = {
    "": "",
    "/": "M3 13L13 1M10 13L20 1M17 13L25 3",
    "\\": "M25 13L15 1M18 13L8 1M11 13L3 3",
    "-": "M3 4h22M3 7h22M3 10h22",
    "|": "M7 1v12M11 1v12M15 1v12M19 1v12",
    "x": "M3 13L13 1M10 13L20 1M17 13L25 3M25 13L15 1M18 13L8 1M11 13L3 3",
    ".": "M6 5h1M11 5h1M16 5h1M21 5h1M6 9h1M11 9h1M16 9h1M21 9h1",
}


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """A small table to read, as cells of text."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart of a section."""

    title: str
    figure: Figure


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, one sentence on how to read the charts, the charts, and their data."""

    heading: str
    how_to_read: str
    views: Mapping[str, Sequence[Panel]]
    """Panels by the label of their view; the reader sees one view at a time."""
    csv: str
    legend: Mapping[str, Style]
    """A click on a name hides and shows the traces of that ``legendgroup``."""
    is_filled: bool = False
    """Whether the legend's colours fill areas, rather than being of lines and markers."""
    table: TextTable | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a report says, first in words, then in charts."""

    title: str
    summary: Sequence[str]
    """Paragraphs."""
    overview: TextTable | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    """Lines to copy, by what they are for."""
    findings: Sequence[str] = ()
    findings_heading: str = "Findings"
    warnings: Sequence[str] = ()
    warnings_heading: str = "Warnings"
    sections: Sequence[Section] = ()


def write_page(page: Page, path: Path) -> None:
    """Write the page as one HTML file."""
    path.write_text(page_html(page), encoding="utf-8")


def page_html(page: Page) -> str:
    """The whole file: markup, style, script, plotly.js and the data."""
    # Only who writes a page loads plotly; its figures are plain data.
    from plotly.offline import get_plotlyjs

    names = _file_names([section.heading for section in page.sections])
    return Template(part("page.html")).substitute(
        title=escape(page.title),
        style=part("page.css"),
        summary="".join(f"<p>{escape(text)}</p>" for text in page.summary),
        overview="" if page.overview is None else _table_html(page.overview),
        code="".join(
            f"<h2>{escape(what)}</h2><pre>{escape(lines)}</pre>"
            for what, lines in page.code.items()
        ),
        findings=_list_html(page.findings_heading, page.findings),
        warnings=_list_html(page.warnings_heading, page.warnings),
        sections="".join(map(_section_html, page.sections, names)),
        version=escape(__version__),
        data=script_json([_section_data(s, n) for s, n in zip(page.sections, names, strict=True)]),
        plotly=get_plotlyjs(),
        script=part("theme.js") + part("page.js"),
    )


def chart_text(text: str) -> str:
    """Text that plotly shows as it is: plotly takes a few tags for markup."""
    return escape(text, quote=False)


def script_json(value: Any) -> str:
    """JSON that may stand inside ``<script>``: nothing in it can end the element."""
    text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plain(value: Any) -> Any:
    """Arrays and numbers of numpy as lists and numbers; what is no number as null."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not np.isfinite(value) else value


def part(name: str) -> str:
    """A file of the pages' markup, style or script."""
    return resources.files("paceline.studies").joinpath(name).read_text("utf-8")


def _file_names(headings: Sequence[str]) -> list[str]:
    """A name for each section's anchor and file, all different."""
    slugs = [re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in headings]
    return [
        slug if slug and slugs.count(slug) == 1 else f"{slug or 'chart'}-{place}"
        for place, slug in enumerate(slugs, start=1)
    ]


def _section_data(section: Section, name: str) -> dict[str, Any]:
    views = [
        [{"title": _picture_title(section, label, panel), **panel.figure} for panel in panels]
        for label, panels in section.views.items()
    ]
    return {"name": name, "views": views, "csv": section.csv}


def _picture_title(section: Section, label: str, panel: Panel) -> str:
    """What stands over a chart that has left the page."""
    view = f" ({label})" if label else ""
    return chart_text(f"{section.heading}{view}: {panel.title}")


def _section_html(section: Section, name: str) -> str:
    views = "".join(
        f'<div class="view"{"" if place == 0 else " hidden"}>{_panels_html(panels)}</div>'
        for place, panels in enumerate(section.views.values())
    )
    table = "" if section.table is None else _table_html(section.table)
    return (
        f'<section id="{name}"><h2>{escape(section.heading)}</h2>'
        f"<p>{escape(section.how_to_read)}</p>"
        f"{_switch_html(list(section.views))}{_legend_html(section)}{views}{table}"
        f'<p class="data"><button type="button" class="csv">Download the data (CSV)</button></p>'
        "</section>"
    )


def _panels_html(panels: Sequence[Panel]) -> str:
    return '<div class="panels">{}</div>'.format(
        "".join(
            f'<figure><figcaption>{escape(panel.title)}</figcaption><div class="plot" role="img" '
            f'aria-label="{escape(panel.title)}"></div></figure>'
            for panel in panels
        )
    )


def _switch_html(labels: Sequence[str]) -> str:
    if len(labels) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" aria-pressed="{"true" if place == 0 else "false"}">'
        f"{escape(label)}</button>"
        for place, label in enumerate(labels)
    )
    return f'<div class="switch" role="group" aria-label="View">{buttons}</div>'


def _legend_html(section: Section) -> str:
    groups = {
        trace.get("legendgroup")
        for panels in section.views.values()
        for panel in panels
        for trace in panel.figure["data"]
    }
    return legend_html(
        section.legend,
        is_filled=section.is_filled,
        fixed=[name for name in section.legend if chart_text(name) not in groups],
    )


def legend_html(
    styles: Mapping[str, Style], *, is_filled: bool = False, fixed: Sequence[str] = ()
) -> str:
    """A legend whose names are buttons, but for the fixed ones.

    Args:
        styles: The style of each name.
        is_filled: Whether colours fill areas.
        fixed: Names that nothing in the charts is hidden by.
    """
    if not styles:
        return ""
    entries = "".join(
        _legend_entry(name, style, is_filled, can_hide=name not in fixed)
        for name, style in styles.items()
    )
    return f'<div class="legend" role="group" aria-label="Legend">{entries}</div>'


def _legend_entry(name: str, style: Style, is_filled: bool, *, can_hide: bool) -> str:
    content = f"{_swatch(style, is_filled=is_filled)}{escape(name)}"
    if not can_hide:
        return f"<span>{content}</span>"
    attributes = f'aria-pressed="true" data-name="{escape(chart_text(name))}"'
    return f'<button type="button" {attributes}>{content}</button>'


def _swatch(style: Style, *, is_filled: bool) -> str:
    if is_filled:
        hatching = f'<path d="{_HATCHINGS[style.pattern]}" stroke="#ffffff" fill="none"/>'
        shape = f'<path d="M3 1h22v12H3z"/>{hatching if style.pattern else ""}'
    else:
        line = (
            f'<path d="M0 7h28" stroke="{style.colour}" stroke-width="2" fill="none" '
            f'stroke-dasharray="{_DASH_ARRAYS[style.dash]}"/>'
        )
        shape = f"{line if style.dash else ''}{_SWATCHES[style.symbol]}"
    return (
        f'<svg width="28" height="14" viewBox="0 0 28 14" fill="{style.colour}" '
        f'aria-hidden="true">{shape}</svg>'
    )


def _table_html(table: TextTable) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows
    )
    # Numbers in the first column take less room than names.
    kind = ' class="numbered"' if all(row[0].isdigit() for row in table.rows) else ""
    return (
        f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _list_html(heading: str, texts: Sequence[str]) -> str:
    if not texts:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<h2>{escape(heading)}</h2><ul>{items}</ul>"
