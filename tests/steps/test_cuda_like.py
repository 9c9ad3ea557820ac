"""Autocast as CUDA does it, captured with a CPU build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.steps import Step, capture_step, cuda_like
from paceline.steps.step import MemoryFormat


def test_autocast_follows_cudas_rules_not_the_cpus() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 8))
    step = Step(
        model=model,
        inputs=torch.randn(4, 16),
        targets=torch.randint(8, (4,)),
        loss=functional.cross_entropy,
        precision="bf16",
    )
    kernels = list(capture_step(step).kernels())

    def dtypes(op: str) -> set[str]:
        found = [kernel for kernel in kernels if kernel.op == op]
        assert found
        return {
            each.dtype
            for kernel in found
            for each in (*kernel.operands, *kernel.outputs)
            if each.dtype != "i64"
        }

    assert dtypes("addmm") == {"bf16"}
    assert dtypes("mm") == {"bf16"}
    assert dtypes("native_layer_norm") == {"f32"}
    assert dtypes("native_layer_norm_backward") == {"f32"}
    assert dtypes("_log_softmax") == {"bf16"}
    assert dtypes("nll_loss_forward") == {"f32"}


def cuda_rule(macro: str) -> set[str]:
    """The operators of one of autocast's rules for CUDA, as PyTorch's own header has them."""
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    found = re.search(rf"#define {macro}\(_\)(.*?)\n\n", header.read_text(), re.DOTALL)
    assert found is not None
    pairs = re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", found[1])
    return {f"{name}.{overload}".rstrip(".") for name, overload in pairs}


def test_autocast_knows_all_of_cudas_operators() -> None:
    assert set(cuda_like._FLOAT32_OPS) == cuda_rule("AT_FORALL_FP32")
    assert set(cuda_like._FLOAT32_DTYPE_OPS) == cuda_rule("AT_FORALL_FP32_SET_OPT_DTYPE")


def test_what_the_cpu_alone_casts_stays_as_it_is() -> None:
    """And what only CUDA casts is cast: interpolation."""

    class Resized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat, self.deep = nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3)

        def forward(self, image: Tensor, volume: Tensor) -> Tensor:
            wide = functional.interpolate(self.flat(image), scale_factor=2.0, mode="bilinear")
            pooled = functional.max_pool3d(self.deep(volume), 2)
            padded = functional.pad(self.flat(image), (1, 1, 1, 1), mode="reflect")
            return wide.sum() + pooled.sum() + padded.sum()

    inputs = (torch.empty(2, 3, 10, 10), torch.empty(2, 3, 8, 8, 8))
    step = Step(model=Resized(), inputs=inputs, precision="bf16")
    dtypes = {kernel.op: kernel.operands[0].dtype for kernel in capture_step(step).kernels()}
    assert dtypes["upsample_bilinear2d"] == "f32"
    assert dtypes["max_pool3d_with_indices"] == "bf16"
    assert dtypes["reflection_pad2d"] == "bf16"


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_group_norm_takes_contiguous_images_alone(memory_format: MemoryFormat) -> None:
    """CUDA's kernel copies others first, and what follows is contiguous; the CPU's does not."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8))
    images = torch.randn(2, 3, 16, 16)
    step = Step(model=model, inputs=images, memory_format=memory_format, loss=torch.sum)
    kernels = list(capture_step(step).kernels())
    # The gradient of a sum is a single number, which is spread out in either case.
    copies = [k for k in kernels if k.op == "clone" and 0 not in (k.operands[0].strides or ())]
    assert len(copies) == (memory_format == "channels_last")
    norm = next(each for each in kernels if each.op == "native_group_norm")
    assert norm.operands[0].strides is None
    assert norm.outputs[0].strides is None
