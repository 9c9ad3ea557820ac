"""Training steps that people published of other GPUs, for benchmarks/devices.py."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from device_networks import define_torchvision_operators
from paceline.steps import Step

_TOKENS = 512


def has_transformers() -> bool:
    """Whether transformers can be imported."""
    import importlib.util

    return importlib.util.find_spec("transformers") is not None


def published_step(row: Mapping[str, str]) -> Step:
    """The step of one row of other_training.csv."""
    batch, precision = int(row["batch"]), row["precision"]
    if row["kind"] == "bert-base":
        return _bert(batch, precision, attention=row["network"])
    model = _image_network(row["kind"], row["network"])
    image = torch.empty(batch, 3, 224, 224, device="meta")
    if precision == "half":  # the model itself, not autocast
        model, image, precision = model.half(), image.half(), "fp32"
    return Step(
        model=model,
        inputs=image,
        targets=torch.empty(batch, dtype=torch.int64, device="meta"),
        loss=_class_loss,
        optimizer=lambda own: torch.optim.SGD(own, lr=0.1, momentum=0.9),
        precision=precision,  # type: ignore[arg-type]
        name=row["network"],
    )


def _image_network(library: str, name: str) -> nn.Module:
    define_torchvision_operators()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import timm
        import torchvision

        if library == "timm":
            return timm.create_model(name)  # type: ignore[no-any-return]
        return getattr(torchvision.models, name)()  # type: ignore[no-any-return]


def _class_loss(output: Any, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output, targets)


def _bert(batch: int, precision: str, *, attention: str) -> Step:
    import transformers

    config = transformers.BertConfig()
    config._attn_implementation = attention
    words = torch.zeros(batch, _TOKENS, dtype=torch.int64)
    return Step(
        model=transformers.BertForMaskedLM(config),
        inputs={"input_ids": words, "labels": words.clone()},
        optimizer=lambda own: torch.optim.SGD(own, lr=0.1),
        precision=precision,  # type: ignore[arg-type]
        name=f"bert-base, {attention} attention",
    )
