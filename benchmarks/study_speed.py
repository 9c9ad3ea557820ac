"""How long a study of 100,000 points takes on one core, and how often it captures the step.

python benchmarks/study_speed.py
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

from paceline.rehearse import cache
from paceline.steps import Capture, Step, load_step
from paceline.studies import study

RESULT = Path(__file__).parent.parent / "docs" / "results" / "study_speed.json"
BAR_S, NUM_POINTS = 30.0, 100_000


def main() -> int:
    torch.set_num_threads(1)
    captured: list[int] = []
    capture_step = vars(cache)["capture_step"]

    def counted(step: Step) -> Capture:
        captured.append(step.batch)
        made: Capture = capture_step(step)
        return made

    vars(cache)["capture_step"] = counted  # counts, and does the same
    step = load_step("resnet50", batch=32, precision="bf16")
    begun, begun_cpu = time.perf_counter(), time.process_time()
    found = study(
        step,
        cluster="dgx-h200",
        strategies=["sync"],
        workers=[8 * nodes for nodes in range(1, 1025)],
        link=[float(rate) for rate in np.geomspace(125e6, 100e9, 98)],
        batch="8:512",
        maps=[("workers", "link")],
        scalings=["weak"],
    )
    took_s, took_cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
    batches = set(found.table["batch"].tolist())
    outcome = {
        "benchmark": "speed of a study",
        "torch": torch.__version__,
        "points": len(found.table),
        "strategy": "sync",
        "seconds": took_s,
        "cpu_seconds": took_cpu_s,
        "captures": len(captured),
        "batch_sizes": len(batches),
    }
    print(json.dumps(outcome, indent=1))
    RESULT.write_text(json.dumps(outcome, indent=1) + "\n", "utf-8")
    is_met = took_s <= BAR_S and len(found.table) >= NUM_POINTS
    return 0 if is_met and sorted(captured) == sorted(batches) else 1


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.exit(main())
