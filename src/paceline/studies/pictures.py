"""The charts of a page as SVG or PNG files, drawn by chromium."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from html import unescape
from pathlib import Path
from typing import Literal, get_args

ImageFormat = Literal["svg", "png"]
IMAGE_FORMATS: tuple[ImageFormat, ...] = get_args(ImageFormat)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_LIMIT_S = 300


def write_pictures(page: Path, folder: Path, image_format: ImageFormat | str = "svg") -> list[Path]:
    """Write every chart of a page that ``write_page`` wrote as a picture.

    Args:
        page: The page's file.
        folder: Where the files go; named after their section, view and place.
        image_format: ``svg`` or ``png``.

    Returns:
        The written files.
    """
    text = re.search("<pre>(.*)</pre>", _drawn(page, image_format), re.DOTALL)
    if text is None:
        raise ValueError(f"{page} has no charts that chromium could draw.")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, drawn in json.loads(unescape(text[1])).items():
        path = folder / f"{name}.{image_format}"
        path.write_bytes(drawn.encode() if image_format == "svg" else base64.b64decode(drawn))
        written.append(path)
    return written


def check_images(image_format: str) -> str:
    """Refuse a format that there is not; ValueError where there is no browser to draw with.

    Args:
        image_format: What is asked for.

    Returns:
        The browser's path.
    """
    if image_format not in IMAGE_FORMATS:
        raise ValueError(f"There are no {image_format!r} images: {' or '.join(IMAGE_FORMATS)}.")
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        raise ValueError(
            "Images are drawn by chromium, which is not installed: install it, or leave images out."
        )
    return browser


def _drawn(page: Path, image_format: str) -> str:
    """The page's content after its script has put pictures in place of it."""
    browser = check_images(image_format)
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
            f"{page.resolve().as_uri()}#{image_format}-pictures",
        ]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=True)
        except (subprocess.SubprocessError, OSError) as problem:
            raise ValueError(f"chromium could not draw the images: {problem}") from None
    return done.stdout.decode("utf-8")
