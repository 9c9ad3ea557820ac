"""Steps from a zoo name, or from the user's own code as ``module:callable``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from paceline.cluster.device import Precision
from paceline.steps.step import MemoryFormat, Step
from paceline.steps.tensors import map_tensors
from paceline.zoo import build_model, zoo_entry

_MOST_SAMPLES = 1 << 30
_MOST_BATCH_BYTES = 1 << 50
_MOST_CLASSES = 1 << 40
DEFAULT_BATCH = 32
"""Samples per step where no batch is given."""

OptimizerMaker = Callable[[Iterable[nn.Parameter]], Optimizer]
OPTIMIZERS: dict[str, OptimizerMaker] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters),
    "adamw": lambda parameters: torch.optim.AdamW(parameters),
    # One iteration per step, its line search included.
    "lbfgs": lambda parameters: torch.optim.LBFGS(
        parameters, max_iter=1, history_size=10, line_search_fn="strong_wolfe"
    ),
    "rprop": lambda parameters: torch.optim.Rprop(parameters),
}
"""The optimizers that a step can name."""


def classification_loss(output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of logits; of text, over every position."""
    return functional.cross_entropy(output.flatten(0, -2), targets.flatten())


def load_step(
    model: str,
    *,
    batch: int | None = None,
    precision: Precision = "fp32",
    memory_format: MemoryFormat = "contiguous",
    optimizer: str | None = None,
    input_shape: tuple[int, ...] = (3, 224, 224),
    num_classes: int = 1000,
    device: str = "meta",
) -> Step:
    """A step from a zoo name or from ``module:callable`` / ``file.py:callable``.

    Args:
        model: The name of a zoo model, or ``module:callable`` or ``file.py:callable``. The callable
            takes no argument, or one named ``batch``. It returns an ``nn.Module``, which is assumed
            to be an image classifier, or a :class:`Step`.
        batch: Samples per worker and step; by default 32, or the callable's own default.
        precision: ``"fp32"``, ``"tf32"``, ``"bf16"`` or ``"fp16"``. A :class:`Step` keeps its
            own precision, unless that is fp32.
        memory_format: ``"contiguous"`` or ``"channels_last"``. A :class:`Step` in channels-last
            format keeps it.
        optimizer: ``"sgd"`` (with momentum), ``"adam"``, ``"adamw"``, ``"rprop"`` or ``"lbfgs"``
            (one iteration with its line search); by default AdamW for a text model of the zoo, and
            SGD for others.
        input_shape: The shape of one sample, for an ``nn.Module`` of your own.
        num_classes: The number of classes, for an ``nn.Module`` of your own.
        device: Where the model and the batch are. On ``"meta"`` they take no memory; on another
            device the step can really run.
    """
    if batch is not None and batch < 1:
        raise ValueError(f"A batch of {batch} has no samples; give at least 1.")
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise ValueError(f"The optimizer {optimizer!r} is unknown; take {', '.join(OPTIMIZERS)}.")
    if batch is not None and batch > _MOST_SAMPLES:
        raise ValueError(f"A batch of {batch} is more than {_MOST_SAMPLES:,} samples per worker.")
    num_samples = DEFAULT_BATCH if batch is None else batch
    if ":" not in model:
        return zoo_step(
            model,
            batch=num_samples,
            precision=precision,
            memory_format=memory_format,
            optimizer=optimizer,
            device=device,
        )
    made = _call(model, batch)
    if isinstance(made, Step):
        if batch not in (None, made.batch):
            raise ValueError(
                f"{model} returned a step with a batch of {made.batch}, not {batch}: let it take "
                "an argument called batch."
            )
        changes: dict[str, Any] = {} if made.precision != "fp32" else {"precision": precision}
        if made.memory_format == "contiguous":
            changes["memory_format"] = memory_format
        if optimizer is not None:
            changes["optimizer"] = OPTIMIZERS[optimizer]
        named = replace(made, name=made.name or model, **changes)
        return named if device == "meta" else on_device(named, device)
    if not isinstance(made, nn.Module):
        raise ValueError(
            f"{model} returned a {type(made).__name__}; it must return an nn.Module or a "
            "paceline.Step."
        )
    with torch.device(device):
        inputs, targets = _random_batch("image", input_shape, num_classes, num_samples)
    return Step(
        model=made if device == "meta" else made.to(device),
        inputs=inputs,
        targets=targets,
        loss=classification_loss,
        optimizer=OPTIMIZERS[optimizer or "sgd"],
        precision=precision,
        memory_format=memory_format,
        name=model,
    )


def zoo_step(
    name: str,
    *,
    batch: int,
    precision: Precision = "fp32",
    memory_format: MemoryFormat = "contiguous",
    optimizer: str | None = None,
    device: str = "meta",
) -> Step:
    """The training step of a zoo model.

    Args:
        name: The model's name.
        batch: Samples per worker and step.
        precision: As for :func:`load_step`, like the arguments below.
        memory_format: The layout of images in memory.
        optimizer: By default AdamW for a text model, SGD for others.
        device: On any device but ``"meta"`` the step can really run.
    """
    entry = zoo_entry(name)
    with torch.device(device):
        model = build_model(name, **entry.training_overrides)
        inputs, targets = _random_batch(entry.kind, entry.input_shape, entry.num_classes, batch)
    default = "adamw" if entry.kind == "text" else "sgd"
    return Step(
        model=model,
        inputs=inputs,
        targets=targets,
        loss=classification_loss,
        optimizer=OPTIMIZERS[optimizer or default],
        precision=precision,
        memory_format=memory_format,
        name=entry.name,
    )


def _random_batch(
    kind: str, shape: tuple[int, ...], num_classes: int, batch: int
) -> tuple[Tensor, Tensor]:
    num_bytes = (8 if kind == "text" else 4) * batch * math.prod(shape)
    limit = _MOST_BATCH_BYTES
    if torch.get_default_device().type == "cpu":
        limit = psutil.virtual_memory().available // 2
    if num_bytes > limit or num_classes > _MOST_CLASSES:
        raise ValueError(
            f"A batch of {batch:,} samples of {'x'.join(map(str, shape))} in {num_classes:,} "
            f"classes has {num_bytes / 1e9:,.0f} GB, and does not fit here; give a smaller one."
        )
    if kind == "text":
        tokens = torch.randint(num_classes, (2, batch, *shape))
        return tokens[0], tokens[1]
    return torch.randn(batch, *shape), torch.randint(num_classes, (batch,))


def on_device(step: Step, device: str) -> Step:
    """The same step with its model and batch on a device, where it can really run.

    Args:
        step: A step whose tensors have values; those on the meta device have none.
        device: Such as ``"cpu"`` or ``"cuda"``.
    """

    def moved(tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            raise ValueError(
                f"{step.name} has tensors on the meta device, without values: its step can be "
                "predicted, but not run here."
            )
        return tensor.to(device)

    for tensor in step.model.state_dict().values():
        moved(tensor)
    return replace(
        step,
        model=step.model.to(device),
        inputs=map_tensors(step.inputs, moved),
        targets=map_tensors(step.targets, moved),
    )


def _call(source: str, batch: int | None) -> Any:
    """Import what ``module:callable`` or ``file.py:callable`` names, and call it."""
    where, _, name = source.rpartition(":")
    with _users_errors_in_words(source):
        module = _module(where)
    factory = getattr(module, name, None)
    if factory is None:
        raise ValueError(f"{where} has no {name!r}; give module:callable or file.py:callable.")
    if not callable(factory):
        raise ValueError(f"{source} is not callable; it must return an nn.Module or a Step.")
    with _users_errors_in_words(source):
        return factory(**_batch_for(factory, batch))


def _batch_for(factory: Callable[..., Any], batch: int | None) -> dict[str, int]:
    """The batch, if the callable takes one, unless none is given and it has a default."""
    try:
        own = inspect.signature(factory).parameters.get("batch")
    except ValueError:  # some that are written in C have no signature
        own = None
    if own is None or (batch is None and own.default is not own.empty):
        return {}
    return {"batch": DEFAULT_BATCH if batch is None else batch}


@contextmanager
def _users_errors_in_words(source: str) -> Iterator[None]:
    try:
        yield
    except ValueError:
        raise
    except (Exception, SystemExit) as problem:
        sentence = " ".join(str(problem).split())
        raise ValueError(f"{source} fails: {type(problem).__name__}: {sentence}.") from problem


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        # Like ``python -m``: the user's own modules are where the user stands.
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as problem:
            raise ValueError(f"There is no module {problem.name!r} to import.") from problem
    path = Path(where)
    if not path.is_file():
        raise ValueError(f"There is no file {where}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
