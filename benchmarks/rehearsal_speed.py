"""How long predictions take: cold, warm, and many at once.

python benchmarks/rehearsal_speed.py
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from paceline.collectives import Route, Topology
from paceline.kernels.library import load_kernel_model
from paceline.rehearse import Conditions, Rehearsal, predict
from paceline.steps import zoo_step

RESULT = Path(__file__).parent.parent / "docs" / "results" / "rehearsal_speed.json"
COLD_BAR_S, WARM_BAR_S, RATE_BAR = 6.0, 0.05, 20_000
NUM_CONFIGURATIONS = 20_000


def cold_s() -> float:
    """A new process, from its start to its end."""
    command = [sys.executable, "-m", "paceline", "predict", "resnet50"]
    begun = time.perf_counter()
    subprocess.run(
        [*command, "--cluster", "dgx-h200", "--nodes", "128"], check=True, capture_output=True
    )
    return time.perf_counter() - begun


def warm_s() -> float:
    """The same process again, each time for another number of nodes."""
    step = zoo_step("resnet50", batch=32)
    predict(step, cluster="dgx-h200", nodes=128)
    times = []
    for nodes in (2, 4, 8, 16, 32, 64, 256, 1000):
        begun = time.perf_counter()
        predict(step, cluster="dgx-h200", nodes=nodes)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def rate_per_s(*, devices: bool) -> float:
    """Configurations a second on one core: cluster sizes, links and, if asked for, devices."""
    torch.set_num_threads(1)
    step = zoo_step("resnet50", batch=32)
    rehearsal = Rehearsal(step, "sync", node_sizes=(8, 8))
    model = load_kernel_model("h200")
    rng = np.random.default_rng(0)

    def random(low: float, high: float) -> np.ndarray:
        return np.exp(rng.uniform(np.log(low), np.log(high), NUM_CONFIGURATIONS))

    topology = Topology(
        num_nodes=np.rint(random(1, 10_000)),
        workers_per_node=np.rint(random(1, 16)),
        inside=Route(latency_s=random(1e-6, 1e-4), bandwidth_bytes_per_s=random(1e9, 1e12)),
        between=Route(latency_s=random(1e-6, 1e-3), bandwidth_bytes_per_s=random(1e8, 1e12)),
    )
    conditions = Conditions(
        topology=topology,
        arithmetic=random(0.1, 10) if devices else 1.0,
        memory=random(0.1, 10) if devices else 1.0,
    )
    rehearsal.retime(conditions, model)
    begun = time.perf_counter()
    timed = rehearsal.retime(conditions, model)
    took_s = time.perf_counter() - begun
    assert np.asarray(timed.step_s).shape == (NUM_CONFIGURATIONS,)
    return NUM_CONFIGURATIONS / took_s


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    colds = [cold_s() for _ in range(3)]
    figures = {
        "cold_s": statistics.median(colds),
        "warm_s": warm_s(),
        "configurations_per_s": rate_per_s(devices=False),
        "configurations_with_devices_per_s": rate_per_s(devices=True),
    }
    outcome = {"benchmark": "speed of predictions", "torch": torch.__version__, **figures}
    print(json.dumps(outcome, indent=1))
    RESULT.write_text(json.dumps(outcome, indent=1) + "\n", "utf-8")
    is_met = figures["cold_s"] <= COLD_BAR_S and figures["warm_s"] <= WARM_BAR_S
    rates = figures["configurations_per_s"], figures["configurations_with_devices_per_s"]
    return 0 if is_met and min(rates) >= RATE_BAR else 1


if __name__ == "__main__":
    sys.exit(main())
