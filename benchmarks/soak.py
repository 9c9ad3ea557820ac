"""A long training on 4 workers: does memory, the number of threads or of open files grow?

    python benchmarks/soak.py
    python benchmarks/soak.py --steps 20000 --strategy daso --strategy sync

Each worker looks at itself every 200 steps. The loss is compared with that of the same training in
one process, without paceline. No figure here is a time. Needs root, for namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import psutil
import torch

from faults import judge, loss_of, make_training
from faults import reference as undisturbed

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "soak.json"
STRATEGIES = ("sync", "local-sgd", "daso")
LOOK_EVERY = 200
SAVE_EVERY = 2000
NODES = [2, 2]


def train(folder: Path, strategy: str, num_steps: int) -> None:
    import paceline

    warnings.simplefilter("ignore")
    model, optimizer, teacher = make_training()
    process = psutil.Process()
    looks = []
    options: dict[str, Any] = {} if strategy == "sync" else {"period": 4}
    with paceline.attach(model, optimizer, strategy, **options) as pace:
        rank = pace.workers.world.rank
        for step in range(num_steps):
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(model, teacher, step, rank))
            optimizer.step()
            if (step + 1) % 100 == 0 and strategy == "daso":
                pace.report(1.0 / (step + 1))
            if (step + 1) % SAVE_EVERY == 0:
                pace.save(folder / "checkpoint")
            if (step + 1) % LOOK_EVERY == 0:
                looks.append(
                    {
                        "step": step + 1,
                        "memory_bytes": process.memory_info().rss,
                        "threads": process.num_threads(),
                        "python_threads": threading.active_count(),
                        "files": process.num_fds(),
                    }
                )
        pace.finish()
        result = {"looks": looks, **judge(model, teacher)}
        (folder / f"end-{rank}").write_text(json.dumps(result))


def soak(strategy: str, num_steps: int) -> dict[str, Any]:
    from paceline.lab.lab import Lab
    from paceline.lab.layout import lay_out

    with tempfile.TemporaryDirectory() as text:
        with Lab(lay_out(workers_per_node="2,2", link="1gbit")) as lab:
            train_it = ["--train", text, "--steps", str(num_steps), "--strategy", strategy]
            code = lab.run(["python", __file__, *train_it])
        if code:
            raise RuntimeError(f"the training with {strategy} failed with exit code {code}")
        ends = [json.loads(path.read_text()) for path in sorted(Path(text).glob("end-*"))]
    job = "together" if strategy == "sync" else "survive"
    expected = undisturbed(job, NODES, num_steps)
    return {
        "strategy": strategy,
        "steps": num_steps,
        "loss": ends[0]["loss"],
        "reference": "synchronous" if strategy == "sync" else "local SGD, period 4",
        "reference_loss": expected["loss"],
        "are_workers_equal": all(end["parameters"] == ends[0]["parameters"] for end in ends),
        "growth": [_growth(end["looks"]) for end in ends],
        "looks_of_worker_0": ends[0]["looks"],
    }


def _growth(looks: list[dict[str, int]]) -> dict[str, Any]:
    """From a tenth of the way to the end: what a start needs is there by then."""
    first, last = looks[len(looks) // 10], looks[-1]
    names = ("memory_bytes", "threads", "python_threads", "files")
    return {name: {"first": first[name], "last": last[name]} for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--strategy", action="append", choices=STRATEGIES)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        train(arguments.train, arguments.strategy[0], arguments.steps)
        return
    rows = json.loads(arguments.output.read_text())["rows"] if arguments.output.exists() else []
    is_bad = False
    for strategy in arguments.strategy or STRATEGIES:
        row = soak(strategy, arguments.steps)
        rows = [each for each in rows if each["strategy"] != strategy] + [row]
        arguments.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
        worst = max(
            each["memory_bytes"]["last"] / each["memory_bytes"]["first"] - 1
            for each in row["growth"]
        )
        names = ("threads", "files")
        counts = [each[name] for each in row["growth"] for name in names]
        more = [count["last"] - count["first"] for count in counts]
        print(
            f"{strategy}: loss {row['loss']:.4f}, reference {row['reference_loss']:.4f}; memory "
            f"{worst:+.1%}, threads and files {max(more):+d}",
            flush=True,
        )
        is_bad |= worst > 0.05 or max(more) > 0 or not row["are_workers_equal"]
    sys.exit(1 if is_bad else 0)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
