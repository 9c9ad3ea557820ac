"""How far predicted steps are off real ones; whole networks are held out, never parts of one.

    python benchmarks/kernel_accuracy.py PROFILE STEPS --out kernel_accuracy.json

PROFILE is what `paceline measure kernels` wrote, STEPS what `benchmarks/kernel_steps.py` wrote on
the same machine. Two predictions of every step: from the measured table (what a user of a zoo
model gets), and by networks fitted without any kernel of the step's own network, and of the other
networks of its fold, with the table holding nothing of them either. Nor has a fold anything of the
networks outside the zoo whose kernels the profile has: some are near relatives of the zoo's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from paceline.kernels.family import family_of
from paceline.kernels.fitted import SUFFIX, FittedModel, load_model
from paceline.kernels.model import KernelModel
from paceline.kernels.profile import Profile, load_profile
from paceline.measure.kernel_fit import NUM_STEPS, fit_profile
from paceline.rehearse.compute import compute_cost
from paceline.steps import Capture, capture_step, zoo_step
from paceline.steps.file import capture_from_dict

# Networks of a kind are spread over the folds, so that a fold never loses a whole kind.
FOLDS: tuple[tuple[str, ...], ...] = (
    ("alexnet", "resnet50", "mobilenet-v2", "gpt2", "mlp"),
    ("vgg16", "densenet121", "vit-b16", "small-cnn"),
    ("resnet18", "efficientnet-b0", "gpt2-medium", "small-gpt"),
    ("resnet152", "googlenet", "convnext-t", "bert-base"),
)


def load_steps(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def captures_of(rows: Iterable[dict[str, Any]]) -> list[Capture]:
    """Of every row; a step that was measured in several sessions is captured once."""
    known: dict[tuple[str, int, str], Capture] = {}
    keys = []
    for row in rows:
        keys.append((row["model"], row["batch"], row["precision"]))
        stored = row.pop("capture", None)
        if stored is not None:
            known[keys[-1]] = capture_from_dict(stored)
        elif keys[-1] not in known:
            name, batch, precision = row["model"], row["batch"], row["precision"]
            known[keys[-1]] = capture_step(zoo_step(name, batch=batch, precision=precision))
    return [known[key] for key in keys]


def mark_limits(rows: list[dict[str, Any]], serial: bool) -> None:
    """Whether host or device limits a real step: the GPU is busy nine tenths of it, or is not.

    How long it is busy is CUDA's profiler's word; of steps that were not profiled, the table's.
    """
    for row in rows:
        busy_s = row.get("busy_s") or row["table"]["device_s"]
        row["limit"] = "device" if serial or busy_s >= 0.9 * row["step_s"] else "host"


def predict_rows(
    rows: Iterable[dict[str, Any]], captures: list[Capture], model: KernelModel, name: str
) -> None:
    for row, capture in zip(rows, captures, strict=True):
        cost = compute_cost(capture, model)
        row[name] = {
            "step_s": cost.timeline.step_s,
            "device_s": cost.timeline.device_s,
            "host_s": cost.timeline.host_s,
            "memory_bytes": cost.memory_bytes,
            "method": cost.method,
            "uncertainty": cost.uncertainty,
            "error": cost.timeline.step_s / row["step_s"] - 1,
        }
        if row["peak_bytes"]:
            row[name]["memory_error"] = cost.memory_bytes / row["peak_bytes"] - 1


def outside_networks(profile: Profile) -> tuple[str, ...]:
    """Networks that are not in the zoo, as ``library:name``, of which the profile has kernels."""
    sources = {name for timing in profile.timings.values() for name in timing.sources}
    return tuple(sorted(name for name in sources if ":" in name))


def without_networks(profile: Profile, names: Iterable[str]) -> Profile:
    held = set(names)
    return Profile(
        facts=profile.facts,
        timings={k: t for k, t in profile.timings.items() if not held & set(t.sources)},
    )


def family_errors(profile: Profile, fitted: FittedModel, held: Iterable[str]) -> dict[str, Any]:
    """Errors of single kernels of networks that were held out, weighted by their time."""
    names = set(held)
    kernels = [k for k, t in profile.measured().items() if names & set(t.sources)]
    model = KernelModel(fitted.device, fitted)
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kernel, estimate in zip(kernels, model.estimate(kernels), strict=True):
        seconds = profile.timings[kernel].seconds
        assert seconds is not None
        found[str(family_of(kernel))].append((estimate.seconds - seconds, seconds))
    return {
        family: {
            "kernels": len(pairs),
            "mean_error": sum(abs(d) for d, _ in pairs) / sum(s for _, s in pairs),
            "bias": sum(d for d, _ in pairs) / sum(s for _, s in pairs),
        }
        for family, pairs in found.items()
    }


def fit_all(arguments: argparse.Namespace, folds: list[tuple[str, ...]]) -> list[FittedModel]:
    """One fit without each fold, side by side on as many processes as there are cores."""
    context = get_context("spawn")
    jobs = [
        (arguments.profile, fold, arguments.fit_steps, arguments.keep and arguments.keep / f"{i}")
        for i, fold in enumerate(folds)
    ]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        return list(pool.map(fit_fold, jobs))


def fit_fold(job: tuple[Path, tuple[str, ...], int, Path | None]) -> FittedModel:
    path, fold, num_steps, kept = job
    if kept and kept.with_suffix(SUFFIX).is_file():
        return load_model(kept.with_suffix(SUFFIX))
    torch.set_num_threads(1)
    fitted = fit_profile(load_profile(path), without=fold, num_steps=num_steps)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        fitted.save(kept.with_suffix(SUFFIX))
    print(f"fitted without {', '.join(fold) or 'nothing'}", file=sys.stderr, flush=True)
    return fitted


def mean_abs(values: Iterable[float]) -> float:
    return statistics.mean(abs(value) for value in values)


def summarise(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for limit in ("device", "host"):
        chosen = [row for row in rows if row["limit"] == limit and name in row]
        if not chosen:
            continue
        by_network: dict[str, list[float]] = defaultdict(list)
        for row in chosen:
            by_network[row["model"]].append(row[name]["error"])
        summary[limit] = {
            "steps": len(chosen),
            "mean_error": mean_abs(row[name]["error"] for row in chosen),
            "bias": statistics.mean(row[name]["error"] for row in chosen),
            "worst_step": max(abs(row[name]["error"]) for row in chosen),
            "networks": {network: mean_abs(errors) for network, errors in by_network.items()},
            "real_spread": statistics.mean(row["spread"] for row in chosen),
        }
    memory = [row[name]["memory_error"] for row in rows if "memory_error" in row.get(name, {})]
    if memory:
        summary["memory_mean_error"] = mean_abs(memory)
    return summary


def by_session(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same figures for each session in which steps were measured."""
    found = {}
    for session in dict.fromkeys(str(row.get("session", "only")) for row in rows):
        own = [row for row in rows if str(row.get("session", "only")) == session]
        found[session] = {
            "held_out": summarise([row for row in own if ":" not in row["model"]], "held_out"),
            "never_seen": summarise([row for row in own if ":" in row["model"]], "held_out"),
        }
    return found


def print_tables(rows: list[dict[str, Any]], outcome: dict[str, Any]) -> None:
    print("| network | batch | precision | limit | real | spread | table | held out | memory |")
    print("|---|--:|---|---|--:|--:|--:|--:|--:|")
    for row in rows:
        held = row.get("held_out", row["table"])
        memory = f"{held['memory_error']:+.1%}" if "memory_error" in held else "–"
        table = f"{row['table']['error']:+.1%}" if held is not row["table"] else "–"
        print(
            f"| {row['model']} | {row['batch']} | {row['precision']} | {row['limit']} "
            f"| {row['step_s'] * 1e3:.2f} ms | {row['spread']:.1%} | {table} "
            f"| {held['error']:+.1%} | {memory} |"
        )
    for name in ("table", "held_out", "never_seen", "untouched"):
        print_summary(name, outcome[name])
    for session, summaries in outcome["sessions"].items():
        for name, summary in summaries.items():
            print_summary(f"session {session}, {name}", summary)


def print_summary(name: str, summary: dict[str, Any]) -> None:
    for limit, facts in summary.items():
        if isinstance(facts, dict):
            worst = max(facts["networks"].items(), key=lambda item: item[1])
            print(
                f"{name}, {limit} limits: mean {facts['mean_error']:.1%} (bias "
                f"{facts['bias']:+.1%}) of {facts['steps']} steps, worst network {worst[0]} "
                f"{worst[1]:.1%}"
            )
        else:
            print(f"{name}, {limit}: {facts:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", type=Path)
    parser.add_argument("steps", type=Path, nargs="+")
    parser.add_argument("--fit-steps", type=int, default=NUM_STEPS)
    parser.add_argument("--keep", type=Path, help="keep the fits in this folder, and take them")
    parser.add_argument("--save-model", type=Path, default=None, help="the fit to everything")
    parser.add_argument("--out", type=Path, default=Path("kernel_accuracy.json"))
    arguments = parser.parse_args()
    profile = load_profile(arguments.profile)
    loaded = [load_steps(path) for path in arguments.steps]
    rows = [row for each in loaded for row in each["steps"]]
    serial = profile.facts.get("device_type") == "cpu"
    captures = captures_of(rows)
    print(f"captured {len(rows)} steps", file=sys.stderr, flush=True)
    zoo = [index for index, row in enumerate(rows) if ":" not in row["model"]]
    outside = outside_networks(profile)
    folds = [fold for fold in FOLDS if any(rows[i]["model"] in fold for i in zoo)]
    if outside:
        folds.append(())
    models = fit_all(arguments, [(), *((*fold, *outside) for fold in folds)])
    whole = models[0]
    if arguments.save_model:
        whole.save(arguments.save_model)
    predict_rows(rows, captures, KernelModel(whole.device, whole, profile.measured()), "table")
    mark_limits(rows, serial)
    families: dict[str, Any] = {}
    for fold, fitted in zip(folds, models[1:], strict=True):
        held = fold or outside
        own = [index for index, row in enumerate(rows) if row["model"] in held]
        table = without_networks(profile, (*fold, *outside)).measured()
        model = KernelModel(fitted.device, fitted, table)
        predict_rows([rows[i] for i in own], [captures[i] for i in own], model, "held_out")
        families[", ".join(fold) or "outside the zoo"] = family_errors(profile, fitted, held)
    for row in rows:
        if ":" in row["model"] and row["model"] not in outside:
            row["held_out"] = row["table"]  # the profile has no kernels of it
    zoo_rows = [rows[i] for i in zoo if "held_out" in rows[i]]
    never_seen = [row for row in rows if ":" in row["model"]]
    untouched = [row for row in never_seen if row["model"] not in outside]
    outcome = {
        "benchmark": "kernel_accuracy",
        "machine": loaded[0]["machine"],
        "torch_here": torch.__version__,
        "profile": {"kernels": len(profile.measured()), "residuals": residuals(whole)},
        "host": {"factors": dict(whole.host.factors), "spread": whole.host.spread},
        "table": summarise([rows[i] for i in zoo], "table"),
        "held_out": summarise(zoo_rows, "held_out"),
        "never_seen": summarise(never_seen, "held_out"),
        "untouched": summarise(untouched, "held_out"),
        "sessions": by_session(rows),
        "families": families,
        "steps": rows,
    }
    arguments.out.write_text(json.dumps(outcome, indent=1) + "\n")
    print_tables(rows, outcome)


def residuals(fitted: FittedModel) -> dict[str, float]:
    return {name: each.residual for name, each in fitted.ensembles.items()}


if __name__ == "__main__":
    main()
