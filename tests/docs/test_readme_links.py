"""The README's links lead somewhere; those of the site are checked when it is built."""

from __future__ import annotations

import re

import pytest

from docs.pages import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\]\(([^)]+)\)", README)


def anchors(markdown: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("link", LINKS)
def test_link_leads_somewhere(link: str) -> None:
    path, _, anchor = link.partition("#")
    target = ROOT / path
    assert target.exists()
    if anchor:
        assert anchor in anchors(target.read_text(encoding="utf-8"))


def test_readme_takes_two_screens() -> None:
    assert len(README.splitlines()) <= 90
    assert "make test" in README
