"""How far predictions are off for networks of the kinds that users bring, on the H200.

    python benchmarks/outside_zoo.py                       # compare with the stored measurements
    python benchmarks/outside_zoo.py --networks fresh      # first seen when the model was complete
    python benchmarks/outside_zoo.py --networks later      # the same, of its next version
    python benchmarks/outside_zoo.py --networks newest     # the same, of the version after that
    python benchmarks/outside_zoo.py --networks unseen     # the same, of the one after that
    python benchmarks/outside_zoo.py --networks last       # the same, of the one after that
    python benchmarks/outside_zoo.py --networks other      # the same, of the one after that
    python benchmarks/outside_zoo.py --networks blind      # the same, of the one before today's
    python benchmarks/outside_zoo.py --networks blind --leave-out
    python benchmarks/outside_zoo.py --measure steps.json  # on a machine with a GPU: measure anew

The profile has the kernels of all these sets. --leave-out predicts a set by a table
without its kernels and a model that is fitted without them, which takes minutes. --model FILE keeps
that model, and takes it from there the next time.

Networks that need transformers or torchvision are left out where these are not installed.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import blind_networks
import fresh_networks
import last_networks
import later_networks
import newest_networks
import other_networks
import unseen_networks
import user_networks
from device_networks import define_torchvision_operators
from paceline.cluster.device import Precision
from paceline.kernels.fitted import load_model
from paceline.kernels.library import built_in_profile, load_kernel_model
from paceline.kernels.model import KernelModel
from paceline.kernels.profile import load_profile
from paceline.measure.kernel_fit import fit_profile
from paceline.measure.real_step import measure_step
from paceline.rehearse.compute import compute_cost
from paceline.steps import capture_step
from user_networks import make_step

RESULTS = Path(__file__).parents[1] / "docs/results"
NETWORKS = {
    "users": user_networks.NETWORKS,
    "fresh": fresh_networks.NETWORKS,
    "later": later_networks.NETWORKS,
    "newest": newest_networks.NETWORKS,
    "unseen": unseen_networks.NETWORKS,
    "last": last_networks.NETWORKS,
    "other": other_networks.NETWORKS,
    "blind": blind_networks.NETWORKS,
}
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
BUSY = 0.9  # of a step: below that the host limits it
ISSUING = 0.85  # of a step: above that the host may limit it


def _measured(
    name: str, batch: int, precision: Precision, networks: user_networks.Networks
) -> dict[str, Any]:
    step = make_step(name, batch, precision, device="cuda", networks=networks)
    return asdict(measure_step(step, rounds=3, target_s=0.1))


def _file(group: str) -> str:
    """What a group's file, its results and its kernels' sources are named after."""
    return "user_networks" if group == "users" else f"{group}_networks"


def measure(path: Path, group: str) -> None:
    rows: list[dict[str, Any]] = []
    networks = NETWORKS[group]
    facts = {"benchmark": _file(group), "machine": torch.cuda.get_device_name()}
    for name, (_, batches, _) in networks.items():
        for precision in PRECISIONS:
            row: dict[str, Any] = {"network": name, "batch": batches[0], "precision": precision}
            try:
                rows.append(row | _measured(name, batches[0], precision, networks))
            except (ImportError, RuntimeError) as problem:  # of a library's version, or memory
                print(f"{name} in {precision} is left out: {problem}")
                continue
            finally:
                gc.collect()
                torch.cuda.empty_cache()
            print(rows[-1], flush=True)
            path.write_text(json.dumps(facts | {"steps": rows}, indent=1))


def _limit(row: Mapping[str, Any]) -> str:
    """What limited a measured step."""
    step_s, busy_s = row["step_s"], row["busy_s"]
    if busy_s > step_s and row["host_s"] > ISSUING * step_s:
        return "host"  # kernels that ran beside each other were counted twice
    return "device" if busy_s > BUSY * step_s else "host"


def _model_without(group: str, model_file: Path | None) -> KernelModel:
    """A model of the H200 that knows no kernel of a group of networks."""
    profile = load_profile(built_in_profile("h200"))
    names = {f"{_file(group)}:{name}" for name in NETWORKS[group]}
    if model_file and model_file.is_file():
        fitted = load_model(model_file)
    else:
        fitted = fit_profile(profile, without=names)
        if model_file:
            fitted.save(model_file)
    kernels = profile.measured().items()
    table = {each: timing for each, timing in kernels if not names & set(timing.sources)}
    return KernelModel(fitted.device, fitted, table)


def compare(group: str, model: KernelModel) -> list[dict[str, Any]]:
    define_torchvision_operators()
    found = []
    stored = RESULTS / f"{_file(group)}_h200.json"
    if not stored.is_file():
        sys.exit(
            f"There are no measurements in {stored.name}; make them with --measure, on an H200."
        )
    for row in json.loads(stored.read_text())["steps"]:
        network, batch, precision = row["network"], row["batch"], row["precision"]
        try:
            step = make_step(network, batch, precision, networks=NETWORKS[group])
            capture = capture_step(step)
        except ImportError as problem:
            print(f"{row['network']} is left out: {problem}")
            continue
        cost = compute_cost(capture, model)
        found.append(
            {
                "network": row["network"],
                "precision": row["precision"],
                "limit": _limit(row),
                "step_s": row["step_s"],
                "step_error": cost.timeline.step_s / row["step_s"] - 1,
                "memory_error": cost.memory_bytes / row["peak_bytes"] - 1,
                "uncertainty": cost.uncertainty,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", choices=NETWORKS, default="users")
    parser.add_argument("--model", type=Path, help="a model that paceline fit wrote")
    parser.add_argument("--leave-out", action="store_true")
    parser.add_argument("--out", type=Path, help="a JSON file to keep the rows in, by group")
    parser.add_argument("--measure", type=Path)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.networks)
        return
    if arguments.leave_out:
        model = _model_without(arguments.networks, arguments.model)
    else:
        model = load_kernel_model("h200", model=arguments.model)
    rows = compare(arguments.networks, model)
    if arguments.out:
        kept = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
        kept[arguments.networks] = rows
        arguments.out.write_text(json.dumps(kept, indent=1) + "\n")
    print("| network | precision | limit | real step | error | range | memory |")
    print("|---|---|---|--:|--:|--:|--:|")
    for row in rows:
        print(
            f"| {row['network']} | {row['precision']} | {row['limit']} "
            f"| {row['step_s'] * 1e3:.1f} ms | {row['step_error']:+.1%} "
            f"| ±{row['uncertainty']:.0%} | {row['memory_error']:+.1%} |"
        )
    busy = [row for row in rows if row["limit"] == "device"]
    errors = [abs(row["step_error"]) for row in busy]
    memory = [abs(row["memory_error"]) for row in rows]
    inside = sum(abs(row["step_error"]) <= row["uncertainty"] for row in busy)
    print(
        f"Where the device limits: mean {statistics.mean(errors):.1%}, worst {max(errors):.1%}, "
        f"{inside} of {len(busy)} inside the range. Memory: mean {statistics.mean(memory):.1%}, "
        f"worst {max(memory):.1%}."
    )


if __name__ == "__main__":
    main()
