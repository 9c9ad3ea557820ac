"""The charts of a page as SVG files, drawn by chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from html import unescape
from pathlib import Path

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_LIMIT_S = 300


def write_pictures(page: Path, folder: Path) -> list[Path]:
    """Write every chart of a page that ``write_page`` wrote as an SVG file.

    Args:
        page: The page's file.
        folder: Where the files go; named after their section, view and place.

    Returns:
        The written files.
    """
    text = re.search("<pre>(.*)</pre>", _drawn(page), re.DOTALL)
    if text is None:
        raise ValueError(f"{page} has no charts that chromium could draw.")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, svg in json.loads(unescape(text[1])).items():
        path = folder / f"{name}.svg"
        path.write_text(svg, encoding="utf-8")
        written.append(path)
    return written


def _drawn(page: Path) -> str:
    """The page's content after its script has put pictures in place of it."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise ValueError(
            "Images are drawn by chromium, which is not installed: install it, or leave images out."
        )
    # As root chromium refuses its sandbox; the page is our own.
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser,
            "--headless",
            *as_root,
            f"--user-data-dir={profile}",
            # Time that passes at once when there is nothing to do: the script has ended then.
            "--virtual-time-budget=600000",
            "--dump-dom",
            f"{page.resolve().as_uri()}#pictures",
        ]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=True)
        except (subprocess.SubprocessError, OSError) as problem:
            raise ValueError(f"chromium could not draw the images: {problem}") from None
    return done.stdout.decode("utf-8")
