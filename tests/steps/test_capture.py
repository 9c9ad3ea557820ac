"""What a capture on fake tensors writes down, against steps that really run."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer
from torch.utils.checkpoint import checkpoint

from paceline.cluster.device import Precision
from paceline.steps import Capture, Step, capture_step, zoo_step
from paceline.steps.step import MemoryFormat
from paceline.zoo import build_model
from real_run import listen_to_second_step

OptimizerMaker = Callable[[Iterable[nn.Parameter]], Optimizer]
OPTIMIZERS: dict[str, OptimizerMaker] = {
    "sgd foreach": lambda parameters: SGD(parameters, 0.1, momentum=0.9, foreach=True),
    "sgd fused": lambda parameters: SGD(parameters, 0.1, momentum=0.9, fused=True),
    "adamw foreach": lambda parameters: AdamW(parameters, foreach=True),
    "adamw fused": lambda parameters: AdamW(parameters, fused=True),
}


def ops(capture: Capture, phase: str) -> list[str]:
    return [k.op for call in capture.calls if call.phase == phase for k in call.kernels]


def scalar_step(model: nn.Module, inputs: Any, **settings: Any) -> Step:
    return Step(model=model, inputs=inputs, **settings)


class Summed(nn.Module):
    """Any module, with a scalar for a loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Tensor) -> Tensor:
        total: Tensor = self.inner(*args).sum()
        return total


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["small-cnn", "small-gpt", "mlp"])
def test_fakes_start_the_kernels_that_a_real_step_starts(
    name: str, precision: Precision, optimizer: str
) -> None:
    step = zoo_step(name, batch=3, precision=precision, device="cpu")
    step = replace(step, optimizer=OPTIMIZERS[optimizer])
    captured, real = capture_step(step), listen_to_second_step(step)
    assert [call.op for call in captured.calls] == real.ops
    assert list(captured.kernels()) == real.kernels
    assert [k.outputs for k in captured.kernels()] == [k.outputs for k in real.kernels]


def test_channels_last_is_what_a_real_channels_last_step_runs() -> None:
    step = zoo_step("small-cnn", batch=3, device="cpu", memory_format="channels_last")
    step = replace(step, optimizer=OPTIMIZERS["sgd foreach"])
    captured = capture_step(step)
    step.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = step.inputs.contiguous(memory_format=torch.channels_last)
    real = listen_to_second_step(replace(step, inputs=images))
    second = [kernel for kernel in captured.kernels() if kernel.op == "convolution"][1]
    assert all(each.is_channels_last for each in (*second.operands[:2], *second.outputs))
    assert list(captured.kernels()) == real.kernels


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_where_the_model_is_makes_no_difference(device: str, memory_format: MemoryFormat) -> None:
    here = capture_step(zoo_step("small-cnn", batch=4, device=device, memory_format=memory_format))
    there = capture_step(zoo_step("small-cnn", batch=4, memory_format=memory_format))
    assert here == there


def test_the_users_model_gradients_and_optimizer_are_untouched() -> None:
    model = build_model("small-cnn").eval()
    optimizer = AdamW(model.parameters(), foreach=None)
    images, classes = torch.randn(4, 1, 8, 8), torch.randint(10, (4,))
    functional.cross_entropy(model(images), classes).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    kept = copy.deepcopy(model.state_dict())
    gradients = [copy.deepcopy(parameter.grad) for parameter in model.parameters()]
    state = copy.deepcopy(optimizer.state_dict())
    identities = [id(parameter) for parameter in model.parameters()]

    capture_step(
        Step(
            model=model,
            inputs=images,
            targets=classes,
            loss=functional.cross_entropy,
            optimizer=optimizer,
            precision="bf16",
            memory_format="channels_last",
        )
    )

    assert [id(parameter) for parameter in model.parameters()] == identities
    assert not model.training
    assert {key: value.stride() for key, value in model.state_dict().items()} == {
        key: value.stride() for key, value in kept.items()
    }
    for key, value in model.state_dict().items():
        assert torch.equal(value, kept[key])
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert gradient is not None
        assert torch.equal(parameter.grad, gradient)
    assert optimizer.param_groups[0]["foreach"] is None
    after = optimizer.state_dict()
    assert after["param_groups"] == state["param_groups"]
    for index, values in state["state"].items():
        for key, value in values.items():
            assert torch.equal(after["state"][index][key], value)
    model.train()(images).sum().backward()  # no hook of the capture is left


def test_gradients_are_ready_in_backward_order_each_once_frozen_ones_never() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    model[1].requires_grad_(False)
    capture = capture_step(scalar_step(Summed(model), torch.randn(2, 8)))
    names = [gradient.parameter for gradient in capture.gradients]
    assert [name.split(".")[1] for name in names] == ["3", "3", "2", "2", "0", "0"]
    assert len(set(names)) == 6
    moments = [gradient.after_call for gradient in capture.gradients]
    assert moments == sorted(moments)
    for gradient in capture.gradients:
        last = capture.calls[gradient.after_call - 1]
        assert last.phase == "backward"
        size = 8 * 8 if gradient.parameter.endswith("weight") else 8
        assert gradient.num_bytes == 4 * size


def test_a_tied_weight_is_ready_once_after_its_last_use_in_the_backward_pass() -> None:
    capture = capture_step(zoo_step("gpt2", batch=1))
    names = [gradient.parameter for gradient in capture.gradients]
    assert len(names) == len(set(names))
    with torch.device("meta"):
        embedding = next(name for name, _ in build_model("gpt2").named_parameters())
    # It multiplies last and looks up first, so its gradient comes with the very last ones.
    assert embedding in names[-2:]


def test_counts_of_parameters_modules_and_nodes() -> None:
    model = Summed(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2, bias=False)))
    capture = capture_step(scalar_step(model, torch.randn(7, 3)))
    assert capture.num_parameters == 3 * 5 + 5 + 5 * 2
    assert capture.num_modules == 5  # the loss, the sequence and its three
    # sum, mm, t, relu, addmm, t, and one for the gradient of each of three parameters
    assert capture.num_autograd_functions == 9
    assert (capture.batch, capture.precision, capture.name) == (7, "fp32", "Summed")


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_runs_the_forward_kernels_again(reentrant: bool) -> None:
    class Saving(nn.Module):
        def __init__(self, *, saves: bool) -> None:
            super().__init__()
            self.first = nn.Linear(16, 16)
            self.second = nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.Tanh())
            self.saves = saves

        def forward(self, rows: Tensor) -> Tensor:
            hidden: Tensor = self.first(rows)
            if not self.saves:
                return torch.as_tensor(self.second(hidden)).sum()
            return torch.as_tensor(checkpoint(self.second, hidden, use_reentrant=reentrant)).sum()

    rows = torch.randn(2, 4, 16)
    plain = capture_step(scalar_step(Saving(saves=False), rows))
    saving = capture_step(scalar_step(Saving(saves=True), rows))
    assert ops(saving, "forward") == ops(plain, "forward")
    again = Counter(ops(saving, "backward")) - Counter(ops(plain, "backward"))
    assert again == Counter({"convolution": 1, "tanh": 1})
    assert {g.parameter for g in saving.gradients} == {g.parameter for g in plain.gradients}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_attention_is_one_kernel_with_a_backward(precision: Precision) -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(32, 96)

        def forward(self, rows: Tensor) -> Tensor:
            q, k, v = self.mix(rows).view(2, 10, 3, 4, 8).permute(2, 0, 3, 1, 4)
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum()

    capture = capture_step(scalar_step(Attends(), torch.randn(2, 10, 32), precision=precision))
    kinds = [k for k in capture.kernels() if k.op.startswith("attention")]
    assert [kernel.op for kernel in kinds] == ["attention", "attention_backward"]
    dtype = "f32" if precision == "fp32" else "bf16"
    for kernel in kinds:
        assert [(each.dtype, each.shape) for each in kernel.operands] == 3 * [
            (dtype, (2, 4, 10, 8))
        ]
        assert kernel.args[3:] == (None, False, True)
    assert [len(kernel.outputs) for kernel in kinds] == [1, 3]
    assert not {"bmm", "_softmax"} & {kernel.op for kernel in capture.kernels()}


def test_attention_with_a_mask_and_dropout_says_so() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, rows: Tensor) -> Tensor:
            rows = rows * self.scale
            mask = torch.ones(10, 10, dtype=torch.bool).tril()
            mixed = functional.scaled_dot_product_attention(
                rows, rows, rows, attn_mask=mask, dropout_p=0.1
            )
            return mixed.sum()

    capture = capture_step(scalar_step(Attends(), torch.randn(2, 4, 10, 8)))
    (forward,) = [kernel for kernel in capture.kernels() if kernel.op == "attention"]
    assert forward.args[3].shape == (1, 1, 10, 10)
    assert forward.args[4:] == (True, False)


def test_tf32_marks_products_only_if_asked_for_and_convolutions_always() -> None:
    model = Summed(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4)))
    images = torch.randn(2, 3, 8, 8)
    marked: dict[Precision, set[str]] = {
        precision: {
            k.op
            for k in capture_step(scalar_step(model, images, precision=precision)).kernels()
            if k.math == "tf32"
        }
        for precision in ("fp32", "tf32", "bf16")
    }
    assert marked == {
        "fp32": {"convolution", "convolution_backward_weight"},
        "tf32": {"convolution", "convolution_backward_weight", "addmm", "mm"},
        "bf16": set(),
    }


def test_dropout_is_one_native_kernel_and_its_backward() -> None:
    model = Summed(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)))
    capture = capture_step(scalar_step(model, torch.randn(2, 8)))
    assert ops(capture, "forward") == ["addmm", "native_dropout", "sum"]
    assert "native_dropout_backward" in ops(capture, "backward")


def test_a_batch_that_would_never_fit_is_captured() -> None:
    small, huge = (capture_step(zoo_step("small-cnn", batch=n)) for n in (2, 1_000_000))
    assert [call.op for call in huge.calls] == [call.op for call in small.calls]
    assert huge.calls[0].kernels[0].operands[0].shape == (1_000_000, 1, 8, 8)
    assert huge.memory.parameters_bytes == small.memory.parameters_bytes
    assert huge.tensors_peak_bytes > 100e9


def test_a_model_that_returns_its_loss_and_takes_named_inputs() -> None:
    class Labelled(nn.Module):
        """As Hugging Face's models: keyword inputs, an object with ``.loss``."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 16)
            self.head = nn.Linear(16, 50)

        def forward(self, *, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
            logits = self.head(self.embed(input_ids))
            return SimpleNamespace(
                loss=functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits=logits
            )

    tokens = torch.randint(50, (3, 5))
    step = Step(model=Labelled(), inputs={"input_ids": tokens, "labels": tokens}, optimizer=Adam)
    capture, real = capture_step(step), listen_to_second_step(replace(step, optimizer=foreach_adam))
    assert capture.batch == 3
    assert list(capture.kernels()) == real.kernels


def foreach_adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """What Adam does by itself on a GPU."""
    return Adam(parameters, foreach=True)


def test_nadam_whose_factors_are_read_back() -> None:
    step = replace(zoo_step("mlp", batch=3, device="cpu"), optimizer=NAdam)
    capture = capture_step(step)
    real = listen_to_second_step(
        replace(step, optimizer=lambda parameters: NAdam(parameters, foreach=True))
    )
    assert list(capture.kernels()) == real.kernels


def test_tensors_that_are_no_buffers_are_taken_along() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.scale = torch.ones(8)
            self.more = [torch.ones(8)]

        def forward(self, rows: Tensor) -> Tensor:
            return torch.as_tensor(self.linear(rows) * self.scale * self.more[0])

    def make() -> nn.Module:
        return Summed(nn.Sequential(Scaled()))

    rows = torch.randn(2, 8)
    with torch.device("meta"):
        abstract = make()
    step = scalar_step(make(), rows, optimizer=OPTIMIZERS["sgd foreach"])
    assert list(capture_step(step).kernels()) == listen_to_second_step(step).kernels
    assert list(capture_step(replace(step, model=abstract)).kernels()) == list(
        capture_step(step).kernels()
    )


def test_views_in_place_start_no_kernel() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(8))

        def forward(self, rows: Tensor) -> Tensor:
            turned = (rows * self.factor).transpose_(0, 1)
            return torch.stack(torch.unsafe_split(turned, 1)).sum()

    capture = capture_step(scalar_step(Turned(), torch.randn(2, 5, 8)))
    free = {call.op for call in capture.calls if not call.kernels}
    assert {"transpose_", "unsafe_split.Tensor"} <= free


class ConvertsItsHead(nn.Module):
    """As routers of mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, rows: Tensor) -> Tensor:
        self.head = self.head.to(torch.float32)
        logits: Tensor = self.head(self.body(rows))
        return logits


def test_a_module_may_convert_itself_into_what_it_is() -> None:
    plain = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    settings: dict[str, Any] = {"loss": functional.cross_entropy, "inputs": torch.zeros(3, 8)}
    settings["targets"] = torch.zeros(3, dtype=torch.int64)
    expected, found = (
        [call.op for call in capture_step(scalar_step(model, **settings)).calls]
        for model in (plain, ConvertsItsHead())
    )
    assert found == expected


def test_cpu_autocast_and_dispatch_are_as_before_afterwards() -> None:
    def behaviour() -> list[str]:
        rows = torch.randn(2, 4, 8, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = rows @ rows
            found = [
                functional.layer_norm(low, (8,)),
                torch.exp(low),
                torch.cat([low, rows]),
                torch.softmax(low, -1),
                functional.cross_entropy(low[0, 0], torch.zeros(8, dtype=torch.int64)),
            ]
        layer = functional.dropout(rows.requires_grad_(), 0.5)
        mixed = functional.scaled_dot_product_attention(rows.double(), rows.double(), rows.double())
        return [*(str(each.dtype) for each in found), layer.grad_fn.name(), mixed.grad_fn.name()]  # type: ignore[union-attr]

    before = behaviour()
    capture_step(zoo_step("small-gpt", batch=2, precision="bf16"))
    with pytest.raises(ValueError, match="fails on an input"):
        capture_step(
            replace(zoo_step("mlp", batch=2, precision="fp16"), inputs=torch.randn(2, 3, 5))
        )
    assert behaviour() == before
    assert not torch.is_autocast_enabled("cpu")
