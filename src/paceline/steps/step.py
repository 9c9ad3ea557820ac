"""What is trained: a model, one batch, a loss, an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.cluster.device import PRECISIONS, Precision
from paceline.steps.tensors import tensors_in

MemoryFormat = Literal["contiguous", "channels_last"]
MEMORY_FORMATS: tuple[MemoryFormat, ...] = get_args(MemoryFormat)
AUTOCAST_DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precisions that run under autocast."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One iteration of training, as one worker runs it.

    Nothing in it has to be in memory: the model and the batch may be on the ``meta`` device, since
    a capture looks at shapes only.

    Args:
        model: The network that is trained.
        inputs: What the model is called with: a tuple or list of arguments, a mapping of named
            ones, or one argument: a tensor, or an object such as a dataclass with tensors.
        targets: What the loss compares the model's output with.
        loss: ``loss(output, targets)``. Without one, the output is the loss, or has it as
            ``.loss``, as Hugging Face's models do when they are given labels.
        optimizer: An optimizer over the model's parameters, or a function that makes one from
            them; by default SGD with momentum.
        precision: ``"fp32"`` is PyTorch's default (recent GPUs then use TF32 in convolutions, not
            in matrix products), ``"tf32"`` is TF32 in both, ``"bf16"`` and ``"fp16"`` are autocast.
        memory_format: How images lie in memory: ``"contiguous"`` or ``"channels_last"``.
        num_samples: Samples in the batch; by default the first size of the first input tensor.
        name: What reports call it; by default the model's class.
    """

    model: nn.Module
    inputs: Any
    targets: Any = None
    loss: Callable[[Any, Any], Tensor] | None = None
    optimizer: Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer] | None = None
    precision: Precision = "fp32"
    memory_format: MemoryFormat = "contiguous"
    num_samples: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"The precision {self.precision!r} is unknown; take one of {', '.join(PRECISIONS)}."
            )
        if self.memory_format not in MEMORY_FORMATS:
            raise ValueError(
                f"The memory format {self.memory_format!r} is unknown; take one of "
                f"{', '.join(MEMORY_FORMATS)}."
            )
        is_made = self.optimizer is None or isinstance(self.optimizer, Optimizer)
        if not is_made and not callable(self.optimizer):
            raise ValueError(
                f"A step's optimizer cannot be {self.optimizer!r}; give an optimizer over the "
                "model's parameters, or a function that makes one from them."
            )
        if not any(True for _ in tensors_in(self.inputs)):
            raise ValueError("A step's inputs hold no tensor; give the model's batch.")
        if self.batch < 1:
            raise ValueError(f"A step's batch has at least one sample, not {self.batch}.")

    @property
    def title(self) -> str:
        """The step's name, or its model's class."""
        return self.name or type(self.model).__name__

    @property
    def batch(self) -> int:
        """Samples in the batch."""
        if self.num_samples is not None:
            return self.num_samples
        first = next(tensors_in(self.inputs))
        return int(first.shape[0]) if first.dim() else 1

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """A new optimizer over ``parameters``, where the step has none of its own."""
        assert not isinstance(self.optimizer, Optimizer)
        if self.optimizer is None:
            return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        return self.optimizer(parameters)

    def compute_loss(self, model: nn.Module, inputs: Any, targets: Any) -> Tensor:
        """The forward pass: what :meth:`Tensor.backward` is called on."""
        output = call_model(model, inputs)
        if self.loss is not None:
            return self.loss(output, targets)
        loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError(
                f"{self.title} returns no loss; give the step a loss, or labels to the model."
            )
        return loss


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a mapping of named arguments, a tuple or list of them, or with one."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, list | tuple) else model(inputs)
