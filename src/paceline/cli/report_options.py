"""The options by which commands write a report, and the writing of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import frame

if TYPE_CHECKING:
    from paceline.studies.page import Page

Images = Annotated[
    str | None,
    typer.Option(
        "--images", metavar="svg|png", help="With --out: the charts, too; needs chromium."
    ),
]


def check(out: Path | None, images: str | None) -> None:
    """Say what is wrong with the options before any work begins."""
    from paceline.studies.pictures import check_images

    if images is None:
        return
    if out is None:
        raise ValueError("--images needs --out, the folder to write them to.")
    check_images(images)


def write(page: Page, folder: Path, images: str | None) -> None:
    """Write ``report.html`` and, if asked for, every chart as an image."""
    from paceline.studies.page import write_page
    from paceline.studies.pictures import write_pictures

    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.html"
    write_page(page, report)
    frame.note(f"report written to {report}")
    if images is not None:
        written = write_pictures(report, folder, images)
        frame.note(f"{len(written)} {images} images written to {folder}")
