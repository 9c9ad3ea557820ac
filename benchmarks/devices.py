"""Predictions for devices that nobody here has measured, against published tables.

python benchmarks/devices.py [--fit] [--cache FOLDER] [--networks N] [--only SECTION]

Every section of SECTIONS compares one kind of prediction with a table in benchmarks/data, and gives
a summary and its rows. The polynomial of matrix products is fitted to the other devices alone where
a device is compared; the networks of a chip are compared on products that they have not seen. --fit
writes those that come with paceline, fitted to all. timm's networks need timm and torchvision (`pip
install --no-deps timm torchvision huggingface_hub`), and BERT transformers; without them these
sections are left out, and the result says so. docs/evidence/devices.md shows the table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from detector import detector_step
from device_networks import Captured, captured, chosen_networks, has_timm, read_table
from device_others import has_transformers, published_step
from device_products import (
    fitted_polynomial,
    known_products,
    left_by_networks,
    save_fit,
    square_tflops,
)
from device_rules import RULES, Array, by_parts
from paceline.kernels import load_kernel_model
from paceline.kernels.model import KernelModel
from paceline.rehearse.compute import step_uncertainty
from paceline.steps import capture_step, zoo_step

DATA = Path(__file__).parent / "data"
DOCS = Path(__file__).parent.parent / "docs"
RESULT = DOCS / "results" / "devices.json"
PAGE = DOCS / "evidence" / "devices.md"
MARKS = ("<!-- benchmarks/devices.py writes from here -->", "<!-- to here -->")
LONG_S = 50e-6
MEASURED = "h200"
FORMATS = {"nchw": "contiguous", "nhwc": "channels_last"}
SINGLE = {  # DeepLearningExamples' networks by timm's names, with their image size
    "resnet50": ("resnet50", 224),
    "resnext101-32x4d": ("resnext101_32x4d", 224),
    "se-resnext101-32x4d": ("seresnext101_32x4d", 224),
    "efficientnet-b4": ("efficientnet_b4", 380),
}
DETECTOR = "ssd300-resnet50"
FORWARD = (
    ("vit_base_patch16_224", 224, 1024),
    ("mixer_b16_224", 224, 1024),
    ("beit_base_patch16_224", 224, 1024),
    ("swin_small_patch4_window7_224", 224, 1024),
    ("vit_small_patch32_224", 224, 1024),
    ("ecaresnet26t", 256, 1024),
    ("resnetv2_101", 224, 1024),
    ("seresnet152d", 256, 1024),
    ("inception_v4", 299, 1024),
    ("regnetx_160", 224, 1024),
    ("eca_nfnet_l1", 256, 1024),
)
GPUS = {"V100-SXM2/3-16GB": "v100", "V100-SXM2/3-32GB": "v100-32gb", "A100-SXM4-80GB": "a100"}


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    cache: Path | None
    num_networks: int | None
    fit: bool


Section = Callable[[Options], dict[str, Any]]


def errors(predicted: Array, real: Array) -> dict[str, float]:
    """Mean relative error, and the median ratio."""
    ratio = predicted / real
    return {
        "num": len(real),
        "mean_error": float(np.abs(ratio - 1).mean()),
        "median_ratio": float(np.median(ratio)),
    }


def products(options: Options) -> dict[str, Any]:
    """bf16 products: each device left out of the polynomial, then unseen products of each chip."""
    known = known_products()
    polynomial = fitted_polynomial([*known.values()])
    summary: dict[str, Any] = {}
    for name, own in known.items():
        others = fitted_polynomial([each for each in known.values() if each is not own])
        predicted_s = own.by_rule | {
            "by parts, and the polynomial of the others": own.real_s / np.exp(own.left(others)),
            "by parts, the polynomial and networks that saw other products of the chip": (
                own.real_s / np.exp(left_by_networks(own, own.left(polynomial)))
            ),
        }
        long = own.real_s > LONG_S
        summary[name] = {
            rule: errors(seconds, own.real_s) | {"long": errors(seconds[long], own.real_s[long])}
            for rule, seconds in predicted_s.items()
        }
    if options.fit:
        save_fit(known, polynomial)
    return {"summary": summary}


def squares(options: Options) -> dict[str, Any]:
    """Square products in all precisions, as PyTorch users measured them on many GPUs."""
    rows = square_tflops()
    summary = {}
    for precision in ("fp32", "tf32", "fp16", "bf16"):
        own = [(real, found) for _, name, found, real in rows if name == precision]
        # In seconds, as everywhere: predicted over real is the other way round in TFLOP/s.
        summary[precision] = {"paceline": errors(*map(np.array, zip(*own, strict=True)))}
    return {"summary": summary, "rows": rows}


def training(options: Options) -> dict[str, Any]:
    """timm's networks training on an RTX 3090, mixed precision."""
    if not has_timm():
        return {"left_out": "timm and torchvision are not installed"}
    summary, rows = {}, []
    tables = {
        memory_format: {
            row["model"]: row for row in read_table(DATA / f"timm_train_rtx3090_{file}.csv")
        }
        for file, memory_format in FORMATS.items()
    }
    first, second = tables.values()
    names = [name for name in first if name in second]
    if options.num_networks is not None:
        names = chosen_networks(names)[: options.num_networks]
    for memory_format, table in tables.items():
        own = []
        for name in names:
            row = table[name]
            capture = captured(
                name,
                batch=int(row["train_batch_size"]),
                size=int(row["train_img_size"]),
                precision="fp16",
                memory_format=memory_format,  # type: ignore[arg-type]
                num_parameters=1e6 * float(row["param_count"]),
                cache=options.cache,
            )
            if capture is not None:
                own.append(
                    {"network": name, "format": memory_format, "device": "rtx3090"}
                    | compared(capture, "rtx3090", 1e-3 * float(row["train_step_time"]))
                )
        summary[memory_format] = summarised(own)
        rows += own
    return {"summary": summary, "rows": rows}


def single_gpu(options: Options) -> dict[str, Any]:
    """NVIDIA's published figures on one V100 or A100."""
    if not has_timm():
        return {"left_out": "timm and torchvision are not installed"}
    rows = []
    for row in read_table(DATA / "deeplearningexamples.csv"):
        if row["n_gpus"] != "1" or row["model"] not in (*SINGLE, DETECTOR):
            continue
        precision, batch = row["precision"].removesuffix("-amp"), int(row["batch_per_gpu"])
        capture = _published_by_nvidia(row["model"], batch, precision, options.cache)
        device = GPUS[row["gpu"]]
        rows.append(
            {"network": row["model"], "precision": precision, "batch": batch, "device": device}
            | compared(capture, device, batch / float(row["throughput"]))
        )
    summary = {
        device: summarised([row for row in rows if row["device"] == device])
        for device in dict.fromkeys(row["device"] for row in rows)
    }
    return {"summary": summary, "rows": rows}


def _published_by_nvidia(model: str, batch: int, precision: Any, cache: Path | None) -> Captured:
    if model == DETECTOR:
        return Captured.of(capture_step(detector_step(batch, precision)))
    name, size = SINGLE[model]
    capture = captured(
        name,
        batch=batch,
        size=size,
        precision=precision,
        memory_format="channels_last" if precision == "fp16" else "contiguous",
        cache=cache,
    )
    assert capture is not None
    return capture


def resnet50(options: Options) -> dict[str, Any]:
    """Lambda's figures of ResNet-50 on one GPU; nothing was chosen by looking at them."""
    rows, known = [], {}
    for row in read_table(DATA / "lambda_resnet50.csv"):
        if row["num_gpus"] != "1":
            continue
        precision, batch = row["precision"], int(row["batch_per_gpu"])
        if (precision, batch) not in known:
            step = zoo_step("resnet50", batch=batch, precision=precision)  # type: ignore[arg-type]
            known[precision, batch] = Captured.of(capture_step(step))
        rows.append(
            {"network": "resnet50", "precision": precision, "batch": batch}
            | {"device": row["device"], "system": row["system"]}
            | compared(known[precision, batch], row["device"], batch / float(row["samples_per_s"]))
        )
    return {"summary": {"all of them": summarised(rows)}, "rows": rows}


def others(options: Options) -> dict[str, Any]:
    """What else people published of single GPUs; nothing was chosen by looking at it."""
    if not has_timm() or not has_transformers():
        return {"left_out": "timm, torchvision and transformers are not all installed"}
    rows, known = [], {}
    for row in read_table(DATA / "other_training.csv"):
        key = (row["kind"], row["network"], row["batch"], row["precision"])
        if key not in known:
            known[key] = Captured.of(capture_step(published_step(row)))
        named = {name: row[name] for name in ("source", "network", "precision", "device")}
        real_s = int(row["batch"]) / float(row["samples_per_s"])
        rows.append(named | compared(known[key], row["device"], real_s))
    summary = {
        device: summarised([row for row in rows if row["device"] == device])
        for device in dict.fromkeys(row["device"] for row in rows)
    }
    return {"summary": summary, "rows": rows}


def speed_up(options: Options) -> dict[str, Any]:
    """Forward passes on an RTX 4090 against an RTX 3090: how many times as fast.

    The table's networks ran in inference mode and the captured ones do not, so only the ratio of
    two devices is compared.
    """
    if not has_timm():
        return {"left_out": "timm and torchvision are not installed"}
    table = {
        (row["gpu"], row["model"], row["img_size"], row["batch"]): float(row["step_ms"])
        for row in read_table(DATA / "timm_forward.csv.gz")
    }
    rows = []
    for name, size, batch in FORWARD:
        capture = captured(
            name,
            batch=batch,
            size=size,
            precision="fp16",
            memory_format="contiguous",
            cache=options.cache,
            forward_only=True,
        )
        assert capture is not None
        slow, fast = (
            float(load_kernel_model(gpu).seconds(capture.kernels) @ np.array(capture.counts))
            for gpu in ("rtx3090", "rtx4090")
        )
        real = [table[gpu, name, str(size), str(batch)] for gpu in ("RTX3090", "RTX4090")]
        rows.append({"network": name, "predicted": slow / fast, "real": real[0] / real[1]})
    found = errors(*(np.array([row[key] for row in rows]) for key in ("predicted", "real")))
    return {"summary": {"rtx4090": {"paceline": found}}, "rows": rows}


def compared(capture: Captured, device: str, real_s: float) -> dict[str, Any]:
    """A step by every rule, and whether the stated range holds."""
    measured, model = load_kernel_model(MEASURED), load_kernel_model(device)
    counts, gaps_s = np.array(capture.counts), capture.num_calls * measured.gap_s
    seconds = model.seconds_where_measured(capture.kernels)
    rules = {
        rule: float(move(capture.kernels, seconds, measured.device, model.device) @ counts + gaps_s)
        for rule, move in RULES.items()
        if move is not by_parts
    }
    step_s = float(model.seconds(capture.kernels) @ counts + gaps_s)
    doubt = uncertainty(model, capture, step_s)
    return {
        "real_s": real_s,
        "predicted_s": step_s,
        "uncertainty": doubt,
        "inside": abs(real_s / step_s - 1) <= doubt,
        "rules_s": rules,
    }


def uncertainty(model: KernelModel, capture: Captured, step_s: float) -> float:
    """The stated range of a step whose device is the limit."""
    estimates = model.estimate(capture.kernels)
    doubts = [
        each.seconds * each.uncertainty
        for each, count in zip(estimates, capture.counts, strict=True)
        for _ in range(count)
    ]
    return step_uncertainty(doubts, step_s)


def summarised(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The errors of many steps, by every rule."""
    real = np.array([row["real_s"] for row in rows])
    own = np.array([row["predicted_s"] for row in rows])
    found: dict[str, Any] = errors(own, real)
    found["inside_range"] = float(np.mean([row["inside"] for row in rows]))
    found["rules"] = {
        rule: errors(np.array([row["rules_s"][rule] for row in rows]), real)
        for rule in rows[0]["rules_s"]
    }
    return found


SECTIONS: dict[str, Section] = {
    "products": products,
    "square products on 15 GPUs": squares,
    "training on an RTX 3090": training,
    "one V100 or A100": single_gpu,
    "ResNet-50 on fourteen GPUs": resnet50,
    "other networks and GPUs": others,
    "RTX 4090 over RTX 3090": speed_up,
}


def lines_of(outcome: dict[str, Any]) -> list[tuple[str, ...]]:
    """What, device, rule, number, mean error, median ratio; one line per device and rule."""
    lines: list[tuple[str, ...]] = []
    for name, section in outcome.items():
        if "left_out" in section:
            lines.append((name, "-", f"left out: {section['left_out']}", "-", "-", "-"))
        for device, found in section.get("summary", {}).items():
            rules = found.get("rules")
            inside = f", {found['inside_range']:.0%} inside the range" if rules else ""
            for rule, each in ({"paceline" + inside: found, **rules} if rules else found).items():
                error, ratio = f"{each['mean_error']:.1%}", f"{each['median_ratio']:.2f}"
                if "long" in each:
                    error += f" ({each['long']['mean_error']:.1%} over 50 us)"
                lines.append((name, device, rule, str(each["num"]), error, ratio))
    return lines


COLUMNS = ("what", "device", "rule", "number", "mean error", "median predicted / real")


def show(outcome: dict[str, Any]) -> None:
    """The lines on the screen."""
    table = Table(*COLUMNS)
    for line in lines_of(outcome):
        table.add_row(*line)
    Console(width=140).print(table)


def write_page(outcome: dict[str, Any]) -> None:
    """The lines in the documentation, between two marks."""
    rows = [" | ".join(line) for line in (COLUMNS, ("---",) * len(COLUMNS), *lines_of(outcome))]
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    table = "\n".join(f"| {row} |" for row in rows)
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{table}\n\n{MARKS[1]}{after}", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="write what is fitted to products")
    parser.add_argument("--cache", type=Path, help="keep captured steps in this folder")
    parser.add_argument("--networks", type=int, help="only so many networks")
    parser.add_argument("--only", choices=SECTIONS, help="renew this section alone")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    options = Options(arguments.cache, arguments.networks, arguments.fit)
    renews = arguments.only and arguments.out.is_file()
    known = json.loads(arguments.out.read_text("utf-8")) if renews else {}
    outcome = {
        name: section(options) if arguments.only in (None, name) else known.get(name, {})
        for name, section in SECTIONS.items()
    }
    show(outcome)
    arguments.out.write_text(json.dumps(outcome, indent=1) + "\n", "utf-8")
    if arguments.out == RESULT:
        write_page(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
