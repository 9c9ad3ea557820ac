"""Which attention CUDA fuses, and what it costs in memory where it does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.cluster.device import Precision
from paceline.kernels.family import flop_of
from paceline.steps import Capture, Step, capture_step

BATCH, HEADS, LENGTH, WIDTH = 2, 8, 128, 64


class Attention(nn.Module):
    """Attention alone, with a learned factor so that there is something to train."""

    def __init__(self, mask: Tensor | None = None, *, groups: int = 1, width: int = WIDTH) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.empty(HEADS, 1, width))
        self.mask, self.groups = mask, groups

    def forward(self, rows: Tensor) -> Tensor:
        query = rows * self.factor.to(rows.dtype)
        key = query[:, :: self.groups]
        seen = functional.scaled_dot_product_attention(
            query, key, key, attn_mask=self.mask, enable_gqa=self.groups > 1
        )
        return seen.sum()


def captured(model: nn.Module, precision: Precision, width: int = WIDTH) -> Capture:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    rows = torch.empty(BATCH, HEADS, LENGTH, width, dtype=dtype, device="meta")
    return capture_step(Step(model=model, inputs=rows, precision=precision))


def is_fused(capture: Capture) -> bool:
    ops = {kernel.op for kernel in capture.kernels()}
    assert ("attention" in ops) != ("_softmax" in ops)
    return "attention" in ops


def mask_of(dtype: torch.dtype, *, learned: bool = False) -> Tensor:
    mask = torch.empty(BATCH, HEADS, LENGTH, LENGTH, dtype=dtype, device="meta")
    return nn.Parameter(mask) if learned else mask


@pytest.mark.parametrize(
    ("precision", "mask", "learned", "groups", "width", "expected"),
    # What torch._fused_sdp_choice answered on an H200, PyTorch 2.11.
    [
        ("fp32", False, False, 1, 64, True),
        ("fp32", True, False, 1, 64, True),
        ("fp32", True, True, 1, 64, True),
        ("fp32", False, False, 4, 64, False),
        ("fp32", False, False, 1, 20, True),
        ("fp32", False, False, 1, 33, False),
        ("bf16", False, False, 1, 64, True),
        ("bf16", False, False, 4, 64, True),
        ("bf16", True, False, 4, 64, True),
        ("bf16", True, True, 1, 64, True),
        ("bf16", True, True, 4, 64, False),
        ("bf16", False, False, 1, 20, True),
        ("bf16", True, False, 1, 20, False),
    ],
)
def test_what_is_fused_is_what_cuda_fuses(
    precision: Precision, mask: bool, learned: bool, groups: int, width: int, expected: bool
) -> None:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    given = mask_of(dtype, learned=learned) if mask else None
    model = Attention(given, groups=groups, width=width).to("meta")
    assert is_fused(captured(model, precision, width)) is expected


def test_scores_that_are_not_fused_are_kept_in_memory() -> None:
    fused = captured(Attention().to("meta"), "fp32").tensors_peak_bytes
    kept = captured(Attention(groups=4).to("meta"), "fp32").tensors_peak_bytes
    scores_bytes = BATCH * HEADS * LENGTH * LENGTH * 4
    assert kept - fused >= scores_bytes


def test_a_learned_bias_that_all_samples_share_is_not_fused() -> None:
    shared = nn.Parameter(torch.empty(1, HEADS, LENGTH, LENGTH, device="meta"))
    capture = captured(Attention(shared).to("meta"), "fp32")
    assert not is_fused(capture)
    # What CUDA's safe softmax does besides the softmax: which rows are masked, zeros for them.
    ops = [kernel.op for kernel in capture.kernels()]
    assert ops.count("all.dim") == 1


@pytest.mark.parametrize("packed", [False, True])
def test_decoders_of_transformers_build_no_mask_for_rows_of_one_sequence(packed: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=HEADS * WIDTH,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
    )
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="meta")
    inputs = {"input_ids": tokens, "labels": tokens}
    if packed:  # the batch says which tokens belong together, so a mask is needed
        inputs["position_ids"] = tokens
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    capture = capture_step(Step(model=model, inputs=inputs, precision="fp32"))
    # As on an H200: without a mask queries stay grouped, which fp32 has no fused kernel for.
    assert is_fused(capture) == packed


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_gradient_of_a_learned_bias_is_part_of_the_kernel(precision: Precision) -> None:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    for learned, expected in ((False, 3), (True, 4)):
        capture = captured(Attention(mask_of(dtype, learned=learned)), precision)
        (kernel,) = [each for each in capture.kernels() if each.op == "attention_backward"]
        assert len(kernel.outputs) == expected
    assert kernel.outputs[-1].shape == (BATCH, HEADS, LENGTH, LENGTH)


@pytest.mark.parametrize(
    ("values", "expected"),
    # Memory-efficient attention takes values of another width than the keys, in steps of 16 bytes.
    [(128, True), (130, False), (WIDTH, True)],
)
def test_values_may_have_another_width_than_keys(values: int, expected: bool) -> None:
    class Latent(nn.Module):
        """Attention whose values have a width of their own, as multi-head latent attention."""

        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.empty(HEADS, 1, WIDTH))
            self.wide = nn.Parameter(torch.empty(WIDTH, values))

        def forward(self, rows: Tensor) -> Tensor:
            query = rows * self.factor.to(rows.dtype)
            value = rows @ self.wide.to(rows.dtype)
            return functional.scaled_dot_product_attention(query, rows, value).sum()

    capture = captured(Latent(), "bf16")
    assert is_fused(capture) == expected
    if expected:
        fused = next(each for each in capture.kernels() if each.op == "attention")
        assert fused.outputs[0].shape == (BATCH, HEADS, LENGTH, values)
        per_pair = 2 * (WIDTH + values)
        assert flop_of(fused) == BATCH * HEADS * LENGTH**2 * per_pair
