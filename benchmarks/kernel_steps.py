"""Real steps on the present device, to hold predictions against.

    python benchmarks/kernel_steps.py --device cuda --out steps.json.gz

Every network of the zoo at several batches and precisions, and on a machine that has torchvision
and transformers also networks that the zoo does not have. What was captured of each step is in the
file, so that `benchmarks/kernel_accuracy.py` can predict them on any other machine.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.cluster.device import Precision
from paceline.measure.kernels import machine_facts
from paceline.measure.real_step import measure_step
from paceline.steps import Step, capture_step, zoo_step
from paceline.steps.file import capture_to_dict
from paceline.steps.source import OPTIMIZERS, classification_loss
from paceline.zoo import model_names, zoo_entry

GPU_BATCHES = {"image": (16, 64, 256), "text": (16, 32), "features": (64, 256)}
CPU_BATCHES = {"image": (4, 16), "text": (2,), "features": (64, 256)}
# Small enough that one step takes at most a few seconds on two cores.
CPU_MODELS = [
    "alexnet",
    "resnet18",
    "resnet50",
    "densenet121",
    "googlenet",
    "mobilenet-v2",
    "efficientnet-b0",
    "convnext-t",
    "vit-b16",
    "mlp",
    "small-cnn",
    "small-gpt",
]
VISION = [
    "regnet_y_800mf",
    "shufflenet_v2_x1_0",
    "mnasnet1_0",
    "squeezenet1_1",
    "resnext50_32x4d",
    "wide_resnet50_2",
    "inception_v3",
    "efficientnet_v2_s",
    "swin_t",
    "densenet169",
    "mobilenet_v3_large",
    "regnet_x_3_2gf",
    "vit_b_32",
]
# Kept for a last test: nothing was chosen, neither kernels nor features, by looking at these.
UNTOUCHED = [
    "resnext101_32x8d",
    "mobilenet_v3_small",
    "densenet201",
    "efficientnet_b3",
    "convnext_small",
    "vgg13_bn",
    "swin_s",
    "regnet_x_800mf",
    "regnet_y_1_6gf",
    "shufflenet_v2_x2_0",
    "squeezenet1_0",
    "resnet34",
    "wide_resnet101_2",
]
LANGUAGE = ("llama", "distilbert", "opt")
RECURRENT = ("LSTM", "GRU")


def vision_step(name: str, batch: int, precision: Precision) -> Step:
    import torchvision

    extra = {"aux_logits": False, "init_weights": False} if name == "inception_v3" else {}
    model: nn.Module = getattr(torchvision.models, name)(weights=None, **extra).cuda()
    side = 299 if name == "inception_v3" else 224
    return Step(
        model=model,
        inputs=torch.randn(batch, 3, side, side, device="cuda"),
        targets=torch.randint(1000, (batch,), device="cuda"),
        loss=classification_loss,
        optimizer=OPTIMIZERS["sgd"],
        precision=precision,
        name=f"torchvision:{name}",
    )


def language_step(name: str, batch: int, precision: Precision) -> Step:
    import transformers

    if name == "llama":
        config = transformers.LlamaConfig(
            hidden_size=768,
            intermediate_size=2048,
            num_hidden_layers=12,
            num_attention_heads=12,
            vocab_size=32000,
        )
        model: Any = transformers.LlamaForCausalLM(config)
    elif name == "opt":
        model = transformers.OPTForCausalLM(transformers.OPTConfig())
    else:
        model = transformers.DistilBertForMaskedLM(transformers.DistilBertConfig())
    model = model.cuda()
    tokens = torch.randint(30000, (batch, 512), device="cuda")
    return Step(
        model=model,
        inputs={"input_ids": tokens, "labels": tokens.clone()},
        optimizer=OPTIMIZERS["adamw"],
        precision=precision,
        name=f"transformers:{name}",
    )


class Recurrent(nn.Module):
    """Two recurrent layers over 50 frames of sound, and a decision at the end."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(128, 512, num_layers=2, batch_first=True)
        self.head = nn.Linear(512, 1000)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        decided: torch.Tensor = self.head(self.layers(frames)[0][:, -1])
        return decided


def recurrent_step(kind: str, batch: int, precision: Precision) -> Step:
    return Step(
        model=Recurrent(kind).cuda(),
        inputs=torch.randn(batch, 50, 128, device="cuda"),
        targets=torch.randint(1000, (batch,), device="cuda"),
        loss=classification_loss,
        optimizer=OPTIMIZERS["sgd"],
        precision=precision,
        name=f"recurrent:{kind}",
    )


Case = tuple[str, int, Precision, Callable[[], Step]]


def cases(device: str, models: list[str], others: str | None) -> Iterator[Case]:
    precisions: tuple[Precision, ...] = ("fp32", "bf16") if device == "cuda" else ("fp32",)
    batches = GPU_BATCHES if device == "cuda" else CPU_BATCHES
    for name in models:
        for precision in precisions:
            for batch in batches[zoo_entry(name).kind]:
                make = partial(zoo_step, name, batch=batch, precision=precision, device=device)
                yield name, batch, precision, make
    if others is None:
        return
    for family, makes, names, sizes in (
        ("transformers", language_step, LANGUAGE, (16,)),
        ("torchvision", vision_step, VISION, (32, 128)),
        ("torchvision", vision_step, UNTOUCHED, (64,)),
        ("recurrent", recurrent_step, RECURRENT, (32, 512)),
    ):
        for name in names:
            if others and name not in others.split(","):
                continue
            for precision in precisions:
                for batch in sizes:
                    make = partial(makes, name, batch, precision)
                    yield f"{family}:{name}", batch, precision, make


def run_case(case: Case) -> dict[str, Any]:
    name, batch, precision, make = case
    step = make()
    row: dict[str, Any] = {"model": name, "batch": batch, "precision": precision}
    row |= asdict(measure_step(step, rounds=3, target_s=0.1))
    if ":" in name:
        row["capture"] = capture_to_dict(capture_step(_as_meta(step)))
    return row


def _as_meta(step: Step) -> Step:
    """The same step without its gradients, which the capture does not need."""
    step.model.zero_grad()
    return replace(step)


def save(outcome: dict[str, Any], path: Path) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(outcome, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--models", default=None, help="of the zoo, with commas between; or none")
    parser.add_argument(
        "--others", nargs="?", const="", help="networks that are not in the zoo, too: all, or these"
    )
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--out", type=Path, default=Path("steps.json.gz"))
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    outcome = {"machine": machine_facts(arguments.device), "steps": rows}
    begun = time.monotonic()
    models = model_names() if arguments.device == "cuda" else CPU_MODELS
    if arguments.models is not None:
        models = [name for name in arguments.models.split(",") if name != "none"]
    for case in cases(arguments.device, models, arguments.others):
        if time.monotonic() - begun > arguments.budget:
            print("out of time", flush=True)
            break
        try:
            rows.append(run_case(case))
        except (RuntimeError, ValueError, ImportError) as problem:
            print(f"{case[:3]}: {problem}"[:300], flush=True)
        else:
            row = rows[-1]
            print(
                f"{row['model']:28} {row['batch']:4} {row['precision']} "
                f"{row['step_s'] * 1e3:9.2f} ms host {row['host_s'] * 1e3:7.2f} ms "
                f"{row['peak_bytes'] / 1e9:7.2f} GB",
                flush=True,
            )
        gc.collect()
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
        if len(rows) % 10 == 0:
            save(outcome, arguments.out)
    save(outcome, arguments.out)


if __name__ == "__main__":
    main()
