"""The files of ``paceline predict --out``: the report, the figures, the traces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli import report_options

if TYPE_CHECKING:
    from paceline.kernels.model import KernelModel
    from paceline.rehearse import Prediction
    from paceline.steps import Step


def trace_path(folder: Path, strategy: str) -> Path:
    """Where the predicted steps of a strategy go."""
    return folder / f"trace-{re.sub(r'[^A-Za-z0-9]+', '-', strategy)}.json.gz"


def write(
    step: Step,
    predictions: Sequence[Prediction],
    *,
    traces: Mapping[str, Path],
    notes: Sequence[str],
    kernel_model: KernelModel,
    folder: Path,
    images: str | None,
) -> None:
    """Write ``report.html`` and ``prediction.json`` beside the traces that are there already."""
    from paceline.rehearse.cache import known_of
    from paceline.studies.reports.prediction import prediction_page
    from paceline.studies.roofline import roofline_kernels
    from paceline.traces import read_trace

    capture = known_of(step).capture
    page = prediction_page(
        predictions,
        memory=capture.memory,
        device=kernel_model.device,
        traces={name: read_trace(path)[0] for name, path in traces.items()},
        kernels=roofline_kernels(capture, kernel_model),
        notes=notes,
    )
    plain = [prediction.to_dict() for prediction in predictions]
    report_options.write(page, folder, images)
    (folder / "prediction.json").write_text(json.dumps(plain, indent=1) + "\n", "utf-8")
