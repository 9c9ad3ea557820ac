"""How long a study of 100,000 points takes on one core, and how often it captures the step.

python benchmarks/study_speed.py [STRATEGY ...]
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.rehearse import cache
from paceline.steps import Capture, Step, load_step
from paceline.studies import study

RESULT = Path(__file__).parent.parent / "docs" / "results" / "study_speed.json"
BAR_S, NUM_POINTS = 30.0, 100_000
STRATEGIES = ("sync", "local-sgd", "daso")


def measure(strategy: str) -> dict[str, Any]:
    """One study of one strategy, of a step that nothing is known of yet."""
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
        strategies=[strategy],
        workers=[8 * nodes for nodes in range(1, 1001)],
        link=[float(rate) for rate in np.geomspace(125e6, 100e9, 100)],
        batch="8:512",
        maps=[("workers", "link")],
        scalings=["weak"],
    )
    took_s, took_cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
    vars(cache)["capture_step"] = capture_step
    batches = set(found.table["batch"].tolist())
    return {
        "points": len(found.table),
        "seconds": took_s,
        "cpu_seconds": took_cpu_s,
        "captures": len(captured),
        "batch_sizes": len(batches),
        "is_met": took_cpu_s <= BAR_S
        and len(found.table) >= NUM_POINTS
        and sorted(captured) == sorted(batches),
    }


def main(strategies: Sequence[str]) -> int:
    torch.set_num_threads(1)
    by_strategy = {}
    for strategy in strategies:
        by_strategy[strategy] = measure(strategy)
        print(strategy, json.dumps(by_strategy[strategy]), flush=True)
    if tuple(strategies) == STRATEGIES:
        outcome = {
            "benchmark": "speed of a study",
            "torch": torch.__version__,
            "strategies": by_strategy,
        }
        RESULT.write_text(json.dumps(outcome, indent=1) + "\n", "utf-8")
    return 0 if all(each["is_met"] for each in by_strategy.values()) else 1


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.exit(main(sys.argv[1:] or STRATEGIES))
