"""Figures of predictions, races, advice and traces made by hand, and pages of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.cluster.devices import load_device
from paceline.rehearse.prediction import Prediction
from paceline.rehearse.run import Run
from paceline.steps.capture import StepMemory
from paceline.studies.page import Page
from paceline.studies.racer import Racer
from paceline.studies.reports.advice import advice_page
from paceline.studies.reports.prediction import prediction_page
from paceline.studies.reports.race import RaceFigures, race_page
from paceline.studies.reports.traces import trace_page
from paceline.studies.trace_comparison import compare_traces
from paceline.traces.trace import Span, write_trace
from synthetic_study import synthetic_roofline

MEMORY = StepMemory(parameters_bytes=100, gradients_bytes=90, optimizer_bytes=180, batch_bytes=10)


def prediction(strategy: str, exposed_s: float, *, model: str = "resnet50") -> Prediction:
    """A step of 0.1 s compute and 0.01 s host on 8 workers, and what is waited."""
    step_s = 0.11 + exposed_s
    return Prediction(
        model=model,
        device="h200",
        nodes=2,
        workers=8,
        batch=32,
        precision="bf16",
        strategy=strategy,
        step_s=step_s,
        compute_s=0.1,
        exposed_communication_s=exposed_s,
        host_s=0.01,
        host_issue_s=0.05,
        throughput_per_s=8 * 32 / step_s,
        scaling_efficiency=0.11 / step_s,
        memory_bytes=1000,
        memory_limit_bytes=1500,
        fits=True,
        bottleneck="communication" if exposed_s > 0.1 else "arithmetic",
        method={"table": 1.0},
        extrapolated=False,
        uncertainty=0.1,
        phases_s={"warm-up": 2 * step_s, "cycling": step_s},
        run=Run(
            samples=1000,
            num_steps=4,
            phases={"all": 4},
            seconds=7200.0,
            mean_step_s=step_s,
            device_hours=16.0,
            dollars=64.0,
        ),
        warnings=("The links were not measured.",),
    )


def spans(step_lengths_s: list[float], *, slower: float = 1.0, worker: int = 0) -> list[Span]:
    """Steps of forward (a tenth of a second), backward (twice that, times ``slower``), and a wait.

    The wait fills what is left; an all-reduce runs beside all of it but the forward pass.
    """
    found, at = [], 0.0
    for number, length_s in enumerate(step_lengths_s):
        end = at + length_s
        backward_end = at + 0.1 + 0.2 * slower
        found += [
            Span(worker, "step", f"step {number}", at, end),
            Span(worker, "compute", "forward", at, at + 0.1),
            Span(worker, "compute", "backward", at + 0.1, backward_end),
            Span(worker, "compute", "wait", backward_end, end),
            Span(worker, "world", "all_reduce 25 MB", at + 0.1, end),
        ]
        at = end
    return found


def trace_files(folder: Path) -> tuple[Path, Path]:
    """Predicted: cycles of 0.4 and 0.6 s; measured: half a tenth more of backward in each."""
    predicted, measured = folder / "predicted.json", folder / "measured.json.gz"
    names = {0: "node 0 worker 0"}
    write_trace(predicted, spans([0.9, 0.8, *[0.4, 0.6] * 4]), worker_names=names, title="p")
    lengths = [0.65, *[0.45, 0.65] * 5]
    write_trace(measured, spans(lengths, slower=1.25), worker_names=names, title="m")
    return predicted, measured


def race(name: str = "daso") -> RaceFigures:
    """Two entries of a race, one of which was predicted."""
    return RaceFigures(
        title=f"small-cnn with {name}",
        target=0.95,
        racers=[
            Racer(
                name="ddp",
                step_s=0.4,
                times_s=[10.0, 20.0],
                accuracies=[0.8, 0.96],
                bytes_between_nodes=5e8,
                time_to_target_s=20.0,
                waiting_share=0.75,
                predicted_step_s=0.44,
                predicted_range_s=(0.4, 0.48),
            ),
            Racer(
                name=name,
                step_s=0.1,
                times_s=[2.5, 5.0],
                accuracies=[0.7, 0.9],
                bytes_between_nodes=4e7,
            ),
        ],
    )


def advice(name: str = "daso") -> dict[str, Any]:
    """Plain figures, as ``Advice.to_dict()`` gives them."""

    def way(what: str, over_plain: float) -> dict[str, Any]:
        return {
            "what": what,
            "step_s": 0.2 / over_plain,
            "throughput_per_s": 1000 * over_plain,
            "scaling_efficiency": 0.3 * over_plain,
            "gain": over_plain,
            "over_plain": over_plain,
            "over_plain_range": [0.9 * over_plain, 1.1 * over_plain],
            "dollars_per_million_samples": 3.0 / over_plain,
        }

    found = prediction(name, 0.05)
    return {
        "model": "resnet50",
        "cluster": "ethernet-10g",
        "setting": f"{name}, batch 32",
        "prediction": found.to_dict(),
        "changes": [way("plain DDP", 1.0), way(f"+ {name}", 2.0)],
        "alternatives": [way("local-sgd", 1.8)],
        "cautions": ["Nodes train apart for four steps."],
        "wishes": [{"wish": "deadline", "is_met": False, "sentence": "One hour too late."}],
        "attach": f'pace = paceline.attach(model, optimizer, "{name}")',
        "commands": {"torchrun": "torchrun train.py"},
        "notes": ["The links were not measured."],
    }


def pages(folder: Path, *, name: str = "daso") -> list[Page]:
    """A page of each kind."""
    predicted, measured = trace_files(folder)
    return [
        prediction_page(
            [prediction("sync", 0.2, model=name), prediction(name, 0.02, model=name)],
            memory=MEMORY,
            device=load_device("h200"),
            traces={"sync": spans([0.31] * 6), name: spans([0.13, 0.2] * 4)},
            kernels=synthetic_roofline(),
        ),
        race_page(race(name)),
        advice_page(advice(name)),
        trace_page(compare_traces(predicted, measured), title=name),
    ]
