"""The explorer's page: the files that its server hands out."""

from __future__ import annotations

from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from paceline.cluster.devices import device_names
from paceline.studies.page import legend_html, part, script_json
from paceline.studies.palette import styles_of
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.studies.explorer.explorer import Explorer


def files_of(explorer: Explorer) -> dict[str, tuple[str, bytes]]:
    """Kind and content of everything that can be asked for, by its path.

    Args:
        explorer: What the page is about.
    """
    from plotly.offline import get_plotlyjs

    script = part("theme.js") + _own("explorer.js")
    style = part("page.css") + _own("explorer.css")
    return {
        "/": ("text/html", _html(explorer).encode()),
        "/explorer.js": ("text/javascript", script.encode()),
        "/explorer.css": ("text/css", style.encode()),
        "/plotly.js": ("text/javascript", get_plotlyjs().encode()),
    }


def _own(name: str) -> str:
    return resources.files("paceline.studies.explorer").joinpath(name).read_text("utf-8")


def _html(explorer: Explorer) -> str:
    first = explorer.first_question
    return Template(_own("explorer.html")).substitute(
        title=escape(explorer.title),
        clusters=_options({name: name for name in explorer.clusters}),
        devices=_options({"": "the cluster's own", **{name: name for name in device_names()}}),
        strategies="".join(
            f'<button type="button" value="{escape(name)}" aria-pressed='
            f'"{"true" if name == first.strategy else "false"}">{escape(name)}</button>'
            for name in explorer.strategies
        ),
        legend=legend_html(styles_of(explorer.strategies)),
        version=escape(__version__),
        data=script_json({"cluster": first.cluster, "device": "", "strategy": first.strategy}),
    )


def _options(labels: dict[str, str]) -> str:
    return "".join(
        f'<option value="{escape(value)}">{escape(label)}</option>'
        for value, label in labels.items()
    )
