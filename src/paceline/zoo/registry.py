"""The zoo's models by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from paceline.suggestion import suggestion
from paceline.zoo.alexnet import alexnet
from paceline.zoo.bert import bert_base
from paceline.zoo.convnext import convnext_t
from paceline.zoo.densenet import densenet121
from paceline.zoo.efficientnet import efficientnet_b0
from paceline.zoo.googlenet import googlenet
from paceline.zoo.gpt import gpt2, gpt2_medium, small_gpt
from paceline.zoo.mlp import mlp
from paceline.zoo.mobilenet import mobilenet_v2
from paceline.zoo.resnet import resnet18, resnet50, resnet152
from paceline.zoo.small_cnn import small_cnn
from paceline.zoo.vgg import vgg16
from paceline.zoo.vit import vit_b16

Kind = Literal["image", "text", "features"]


@dataclass(frozen=True, kw_only=True)
class ZooEntry:
    """What is known about a model before it is built."""

    name: str
    description: str
    factory: Callable[..., nn.Module]
    kind: Kind
    """What it reads: float images, integer tokens, or float features."""
    input_shape: tuple[int, ...]
    """The shape of one example, without the batch."""
    num_classes: int
    """How many logits it returns: the classes, or for text the vocabulary."""
    training_overrides: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What to pass to :func:`build_model` for one tensor of logits, where the default has none."""
    data: str | None = None
    """The embedded data set that fits it, if one does."""


def _imagenet(name: str, factory: Callable[..., nn.Module], description: str) -> ZooEntry:
    return ZooEntry(
        name=name,
        description=description,
        factory=factory,
        kind="image",
        input_shape=(3, 224, 224),
        num_classes=1000,
    )


_ENTRIES = (
    _imagenet("alexnet", alexnet, "five convolutions, large linear layers"),
    _imagenet("vgg16", vgg16, "thirteen 3x3 convolutions, very large linear layers"),
    _imagenet("resnet18", resnet18, "residual network of basic blocks"),
    _imagenet("resnet50", resnet50, "residual network of bottleneck blocks"),
    _imagenet("resnet152", resnet152, "deep residual network of bottleneck blocks"),
    _imagenet("densenet121", densenet121, "every layer reads all earlier ones of its block"),
    _imagenet("googlenet", googlenet, "inception blocks of four branches"),
    _imagenet("mobilenet-v2", mobilenet_v2, "inverted residuals of depthwise convolutions"),
    _imagenet("efficientnet-b0", efficientnet_b0, "inverted residuals with squeeze-excitation"),
    _imagenet("convnext-t", convnext_t, "convolutional network in the manner of a transformer"),
    _imagenet("vit-b16", vit_b16, "vision transformer, base size, 16x16 patches"),
    ZooEntry(
        name="gpt2",
        description="decoder-only language model, 12 layers",
        factory=gpt2,
        kind="text",
        input_shape=(1024,),
        num_classes=50257,
    ),
    ZooEntry(
        name="gpt2-medium",
        description="decoder-only language model, 24 layers",
        factory=gpt2_medium,
        kind="text",
        input_shape=(1024,),
        num_classes=50257,
    ),
    ZooEntry(
        name="bert-base",
        description="bidirectional encoder, 12 layers; masked_lm=True to train it",
        factory=bert_base,
        kind="text",
        input_shape=(512,),
        num_classes=30522,
        training_overrides={"masked_lm": True},
    ),
    ZooEntry(
        name="mlp",
        description="plain multi-layer perceptron for the digits",
        factory=mlp,
        kind="features",
        input_shape=(64,),
        num_classes=10,
        data="digits",
    ),
    ZooEntry(
        name="small-cnn",
        description="cheap to compute, costly to communicate, for the digits",
        factory=small_cnn,
        kind="image",
        input_shape=(1, 8, 8),
        num_classes=10,
        data="digits",
    ),
    ZooEntry(
        name="small-gpt",
        description="GPT over characters, 2 layers",
        factory=small_gpt,
        kind="text",
        input_shape=(64,),
        num_classes=128,
        data="stdlib-text",
    ),
)


def _key(name: str) -> str:
    """The name as it is compared: "ResNet-18", "resnet_18" and "resnet18" are one."""
    return name.strip().lower().replace("-", "").replace("_", "")


_BY_KEY = {_key(entry.name): entry for entry in _ENTRIES}


def model_names() -> list[str]:
    """The names that :func:`build_model` knows."""
    return [entry.name for entry in _ENTRIES]


def zoo_entry(name: str) -> ZooEntry:
    """The entry of a name; case, hyphens and underscores do not matter."""
    entry = _BY_KEY.get(_key(name))
    if entry is None:
        raise ValueError(f"The zoo has no model {name!r}: {suggestion(name, model_names())}")
    return entry


def build_model(name: str, **overrides: Any) -> nn.Module:
    """Build a model with fresh weights.

    Args:
        name: One of :func:`model_names`; case, hyphens and underscores do not matter.
        overrides: Arguments of the model's own factory, such as ``num_classes``.
    """
    entry = zoo_entry(name)
    known = list(inspect.signature(entry.factory).parameters)
    unknown = [argument for argument in overrides if argument not in known]
    if unknown:
        raise ValueError(
            f"The model {entry.name!r} takes no argument {unknown[0]!r}; "
            f"it takes {', '.join(known)}."
        )
    return entry.factory(**overrides)
