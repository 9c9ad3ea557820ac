"""What happens to a training job when something breaks: one row per fault, layout and kind of job.

    python benchmarks/faults.py
    python benchmarks/faults.py --layout 3x1 --fault kill-node --job survive

Every row is a real job on an emulated cluster. Each fault happens when all workers train. Figures
in seconds depend on the machine; the outcomes do not. Needs root, for namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "faults.json"
LAYOUTS = {"3x1": "1,1,1", "2x2": "2,2"}
JOBS = ("survive", "together")
PERIOD = 4
SILENCE_S, TIMEOUT_S = 4.0, 40.0
LIMIT_S = 240.0
"""Whatever has not ended by then hangs."""
# The last node; node 0 too, which usually holds everything that a job shares.
FAULTS = {
    "none": (),
    "kill-worker": ("kill {node}:0",),
    "kill-node": ("kill {node}",),
    "kill-node-0": ("kill 0",),
    "link-down-10s": ("link {node} down for 10s",),
    "throttle-1mbit": ("link {node}=1mbit for 10s",),
    "disk-full": ("fill {folder} for 8s",),
    "stop-10s": ("stop {node}:0 for 10s",),
}
_TELLING = re.compile(r"TeamError|CheckpointError|paceline: ")


def make_training() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return model, optimizer, torch.randn(64, 10)


def loss_of(model: Any, teacher: Any, step: int, rank: int, size: int = 16) -> Any:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 64, generator=draw)
    return torch.nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))


def judge(model: Any, teacher: Any) -> dict[str, Any]:
    with torch.no_grad():
        loss = loss_of(model, teacher, 10**9, 0, size=4096)
    flat = torch.cat([p.detach().view(-1) for p in model.parameters()]).double()
    return {"loss": float(loss), "parameters": [float(flat.sum()), float(flat.norm())]}


def reference(job: str, nodes: list[int], num_steps: int) -> dict[str, Any]:
    """The same training without any fault, in this process and without paceline."""
    made = [make_training() for _ in (nodes if job == "survive" else [0])]
    teacher = made[0][2]
    ranks = [list(range(sum(nodes[:i]), sum(nodes[: i + 1]))) for i in range(len(nodes))]
    if job != "survive":
        ranks = [list(range(sum(nodes)))]
    weights = [len(each) / sum(nodes) for each in ranks]

    def average() -> None:
        for parameters in zip(*(list(model.parameters()) for model, _, _ in made), strict=True):
            mean = torch.stack([w * p for w, p in zip(weights, parameters, strict=True)]).sum(0)
            for parameter in parameters:
                parameter.copy_(mean)

    for step in range(num_steps):
        for (model, optimizer, _), own in zip(made, ranks, strict=True):
            optimizer.zero_grad()
            losses = [loss_of(model, teacher, step, rank) for rank in own]
            torch.autograd.backward(torch.stack(losses).mean())
            optimizer.step()
        if (step + 1) % PERIOD == 0 or step + 1 == num_steps:
            with torch.no_grad():
                average()
    return judge(made[0][0], teacher)


def train(folder: Path, job: str) -> None:
    """The user's program: digits-like data, a checkpoint every 25 steps, as many steps as told."""
    import paceline

    warnings.simplefilter("ignore")
    model, optimizer, teacher = make_training()
    does_survive = job == "survive"
    strategy = paceline.LocalSgd(period=PERIOD) if does_survive else paceline.Sync()
    longest_s, lost_saves = 0.0, 0
    options: dict[str, Any] = {"survive": True} if does_survive else {"timeout": TIMEOUT_S}
    with paceline.attach(model, optimizer, strategy, **options) as pace:
        rank = pace.workers.world.rank
        number = len(list(folder.glob(f"begun-{rank}-*")))
        (folder / f"begun-{rank}-{number}").write_text(str(pace.strategy.step))
        while pace.strategy.step < _last_step(folder):
            begun_s = time.perf_counter()
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(model, teacher, pace.strategy.step, rank))
            optimizer.step()
            if pace.strategy.step % 25 == 0 and (folder / "disk").exists():
                try:
                    pace.save(folder / "disk" / "checkpoint")
                except paceline.CheckpointError as error:
                    lost_saves += 1
                    if lost_saves == 1:
                        print(f"CheckpointError: {error}", file=sys.stderr, flush=True)
            (folder / f"step-{rank}.part").write_text(str(pace.strategy.step))
            (folder / f"step-{rank}.part").replace(folder / f"step-{rank}")
            longest_s = max(longest_s, time.perf_counter() - begun_s)
            time.sleep(0.02)
        pace.finish()
        result = {
            "steps": pace.strategy.step,
            **judge(model, teacher),
            "longest_step_s": longest_s,
            "lost_saves": lost_saves,
        }
        (folder / f"end-{rank}").write_text(json.dumps(result))


def _last_step(folder: Path) -> int:
    try:
        return int((folder / "last-step").read_text())
    except FileNotFoundError:
        return 1 << 30


class Director:
    """Watches a job, breaks something when all train, and lets it end when all is well again."""

    def __init__(self, lab: Any, folder: Path, name: str, job: str, num_nodes: int) -> None:
        from paceline.lab.faults import parse_fault

        self.lab, self.folder, self.name, self.does_survive = lab, folder, name, job == "survive"
        self.num_workers = sum(lab.cluster.workers_per_node)
        texts = [text.format(node=num_nodes - 1, folder=folder / "disk") for text in FAULTS[name]]
        made = [re.sub(r"( for |$)", r" at 0s\1", text, count=1) for text in texts]
        self.faults = [parse_fault(text, lab.cluster) for text in made]
        self.job: Any = None
        self.begun_s = time.monotonic()
        self.broken_s: float | None = None
        self.step_before = 0
        self.is_restarted = False
        self.is_ending = False
        self.was_ended = False

    def steps(self) -> list[int]:
        return [int(path.read_text()) for path in self.folder.glob("step-?")]

    def look(self) -> None:
        now_s, steps = time.monotonic(), self.steps()
        if now_s - self.begun_s > LIMIT_S and not self.was_ended:
            self.was_ended = True
            self.job.end()
        if self.is_ending or len(steps) < self.num_workers or min(steps) < 40:
            return
        if self.broken_s is None:
            self.broken_s, self.step_before = now_s, max(steps)
            at_s = self.job.elapsed_s
            self.lab.inject(self.job, [replace(fault, at_s=at_s) for fault in self.faults])
            return
        lasts_s = max([fault.for_s or 0.0 for fault in self.faults], default=0.0)
        if now_s - self.broken_s < lasts_s + 1.0:
            return
        if self.name.startswith("kill"):
            if not self.does_survive or max(steps) < self.step_before + 100:
                return
            node = self.faults[0].node
            if not self.is_restarted:
                # A new torchrun on the node, by a person or by the cluster's scheduler.
                self.is_restarted = self.job.start_node(node)
                return
            num_back = len(list(self.folder.glob("begun-*-1")))
            if num_back < self.lab.cluster.workers_per_node[node]:
                return
        if min(steps) >= self.step_before + 150:
            self.is_ending = True
            (self.folder / "part").write_text(str(max(steps) + 60))
            (self.folder / "part").replace(self.folder / "last-step")


def run_row(name: str, layout: str, job: str) -> dict[str, Any]:
    from paceline.lab.lab import Lab
    from paceline.lab.layout import lay_out

    cluster = lay_out(workers_per_node=LAYOUTS[layout], link="100mbit")
    with tempfile.TemporaryDirectory() as text, tempfile.TemporaryFile("w+") as output:
        folder = Path(text)
        with Lab(cluster) as lab:
            lab_name = lab._name
            director = Director(lab, folder, name, job, len(cluster.workers_per_node))
            director.job = lab.start(
                ["python", __file__, "--train", str(folder), "--job", job],
                output=output,
                disk=folder / "disk" if name == "disk-full" else None,
                survive=job == "survive",
                silence_s=SILENCE_S,
                timeout_s=TIMEOUT_S,
            )
            code = director.job.wait(on_poll=director.look)
            ended_s = time.monotonic()
            failure = director.job.first_failure()
        left = _left_behind(lab_name)
        output.seek(0)
        lines = output.read().splitlines()
        ends = [json.loads(path.read_text()) for path in sorted(folder.glob("end-*"))]
        begun = [int(path.read_text()) for path in sorted(folder.glob("begun-*-1"))]
    told = [line for line in lines if _TELLING.search(line)]
    broken_s = director.broken_s
    return {
        "fault": name,
        "layout": layout,
        "job": job,
        "exit_code": code,
        "outcome": _outcome(director, code, told),
        "ended_s_after_fault": None if code == 0 or broken_s is None else ended_s - broken_s,
        "first_failure": None if failure is None else str(failure),
        "message": _message(told, code),
        "steps": max((end["steps"] for end in ends), default=None),
        "returned_at_step": min(begun, default=None),
        "loss": max((end["loss"] for end in ends), default=None),
        "are_workers_equal": all(end["parameters"] == ends[0]["parameters"] for end in ends),
        **_compared(job, list(cluster.workers_per_node), ends),
        "longest_step_s": max((end["longest_step_s"] for end in ends), default=None),
        "lost_saves": max((end["lost_saves"] for end in ends), default=None),
        "left_behind": left,
        "log": told[:12] if code else told[:8],
    }


def _compared(job: str, nodes: list[int], ends: list[Any]) -> dict[str, Any]:
    """The loss, and the parameters' distance from those of an undisturbed training as long."""
    if not ends:
        return {"reference_loss": None, "relative_difference": None}
    undisturbed = reference(job, nodes, ends[0]["steps"])
    own, expected = ends[0]["parameters"], undisturbed["parameters"]
    difference = max(abs(a / b - 1) for a, b in zip(own, expected, strict=True))
    return {"reference_loss": undisturbed["loss"], "relative_difference": difference}


def _outcome(director: Director, code: int, told: list[str]) -> str:
    if director.was_ended:
        return "hangs"
    if code:
        return "ends with a message"
    if any(" back; " in line for line in told):
        return "goes on without it, takes it back"
    return "goes on without it" if any("has lost" in line for line in told) else "goes on"


def _message(told: list[str], code: int) -> str | None:
    """The sentence that a user reads first."""
    if code:
        errors = [line for line in told if "TeamError" in line or "CheckpointError" in line]
        return re.sub(r"^(\[.*?\]:? )*(\S+\.)?", "", errors[0]) if errors else None
    wanted = ("has lost", "taken", "CheckpointError")
    found = [re.sub(r"^\[.*?\] ", "", line) for line in told if any(w in line for w in wanted)]
    return found[0] if found else None


def _left_behind(lab_name: str) -> list[str]:
    import psutil

    from paceline.lab.processes import ENVIRONMENT_VARIABLE

    left = [path.name for path in Path("/var/run/netns").glob(f"{lab_name}*")]
    left += [str(path) for path in Path(tempfile.gettempdir()).glob(f"{lab_name}*")]
    for process in psutil.process_iter():
        try:
            if process.environ().get(ENVIRONMENT_VARIABLE) == lab_name:
                left.append(f"process {process.pid}")
        except (psutil.Error, OSError):
            continue
    return left


def show(rows: list[dict[str, Any]]) -> None:
    """The table of the documentation."""
    print("| job | layout | fault | what happens | loss (undisturbed) | longest step |")
    print("|---|---|---|---|---:|---:|")
    order = {name: place for place, name in enumerate(FAULTS)}
    for row in sorted(rows, key=lambda r: (JOBS.index(r["job"]), r["layout"], order[r["fault"]])):
        loss, longest = "", ""
        if row["loss"] is not None:
            loss = f"{row['loss']:.3f} ({row['reference_loss']:.3f})"
            difference = row["relative_difference"]
            if difference < 1e-4:
                loss += f", same to {difference:.0e}" if difference else ", same bits"
            longest = f"{row['longest_step_s']:.1f} s"
        happens = row["outcome"]
        if row["ended_s_after_fault"] is not None:
            happens += f" after {row['ended_s_after_fault']:.0f} s"
        if row["returned_at_step"] is not None:
            happens += f" at step {row['returned_at_step']} of {row['steps']}"
        if row["lost_saves"]:
            happens += f"; {row['lost_saves']} saves fail with a message"
        cells = (row["job"], row["layout"], row["fault"], happens, loss, longest)
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", choices=LAYOUTS, action="append")
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("--job", choices=JOBS, action="append")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="print the table of what is there")
    arguments = parser.parse_args()
    if arguments.show:
        show(json.loads(arguments.output.read_text())["rows"])
        return
    if arguments.train is not None:
        train(arguments.train, arguments.job[0])
        return
    rows = json.loads(arguments.output.read_text())["rows"] if arguments.output.exists() else []
    for job in arguments.job or JOBS:
        for layout in arguments.layout or LAYOUTS:
            for name in arguments.fault or FAULTS:
                row = run_row(name, layout, job)
                key = (name, layout, job)
                rows = [r for r in rows if (r["fault"], r["layout"], r["job"]) != key] + [row]
                print(f"{job:9} {layout} {name:16} {row['outcome']}; {row['message']}", flush=True)
                settings = {"silence_s": SILENCE_S, "timeout_s": TIMEOUT_S}
                arguments.output.write_text(
                    json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n"
                )
    bad = [row for row in rows if row["outcome"] == "hangs" or row["left_behind"]]
    sys.exit(1 if bad or any(not row["are_workers_equal"] for row in rows) else 0)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
