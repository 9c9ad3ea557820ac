"""Steps that cannot be captured: one sentence each, with what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, SparseAdam

from paceline.steps import Step, capture_step


class Does(nn.Module):
    """A linear layer, and then whatever is to be tried."""

    def __init__(self, after: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.after = after

    def forward(self, rows: Tensor) -> Any:
        return self.after(self.linear(rows))


class Odd(SGD):
    """An optimizer whose step wants more than a closure."""

    def step(self, closure: Any, extra: Any) -> Any:  # type: ignore[override]
        raise AssertionError("nobody knows what to give it")


def step(after: Callable[[Tensor], Any] = Tensor.sum, **settings: Any) -> Step:
    return Step(**{"model": Does(after), "inputs": torch.randn(4, 8), **settings})


TOKENS = torch.zeros(4, 8, dtype=torch.int64)
SPARSE = nn.Embedding(10, 8, sparse=True)
SPARSE_BAG = nn.EmbeddingBag(10, 8, mode="sum", sparse=True)
FOREIGN = SGD(nn.Linear(8, 8).parameters(), 0.1)

CASES: dict[str, tuple[Step, str]] = {
    "item": (step(lambda rows: rows.sum() * rows.mean().item()), r"reads the value of a tensor"),
    "comparison": (
        step(lambda rows: rows.sum() if rows.mean() > 0 else rows.mean()),
        r"Does reads the value of a tensor \(_local_scalar_dense\).*replace \.item\(\)",
    ),
    "nonzero": (
        step(lambda rows: rows[(rows[:, 0] > 0).nonzero()].sum()),
        r"reads the value of a tensor \(nonzero",
    ),
    "shape": (
        step(inputs=torch.randn(4, 9)),
        r"Does fails on an input of shape \(4, 9\): .*check the input's shape",
    ),
    "no loss": (step(lambda rows: rows), r"Does returns no loss; give the step a loss"),
    "nothing": (step(lambda rows: None), r"returns no loss"),
    "loss of many": (step(lambda rows: rows, loss=lambda rows, _: rows), r"only for scalar"),
    "detached": (step(lambda rows: rows.detach().sum()), r"does not require grad"),
    "wrong targets": (
        step(lambda rows: rows, targets=torch.zeros(3).long(), loss=functional.cross_entropy),
        r"^Expected input batch_size \(4\) to match target batch_size \(3\)",
    ),
    "dtype": (
        step(lambda rows: rows.to(torch.float8_e4m3fn).float().sum()),
        r"a tensor of torch\.float8_e4m3fn, which paceline has no cost for; it knows float64",
    ),
    "sparse gradient": (
        step(model=SPARSE, inputs=TOKENS, loss=lambda rows, _: rows.sum(), optimizer=SparseAdam),
        r"^Sparse tensors, such as the gradient of nn\.Embedding\(sparse=True\), cannot be capt",
    ),
    "sparse gradients of a bag": (
        step(model=SPARSE_BAG, inputs=TOKENS, loss=lambda rows, _: rows.sum()),
        r"^Sparse tensors, .* use dense ones \(sparse=False\)\.$",
    ),
    "sparse activation": (
        step(lambda rows: torch.sparse.sum(rows.to_sparse())),
        r"^Sparse tensors, .*cannot be captured",
    ),
    "foreign optimizer": (step(optimizer=FOREIGN), r"holds parameters that the step's model does"),
    "arguments": (step(optimizer=Odd), r"Odd cannot be captured: .*needs no arguments but a clos"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_that_cannot_be_captured_is_one_sentence(
    case: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    bad, match = CASES[case]
    with pytest.raises(ValueError, match=match) as raised:
        capture_step(bad)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_the_log_of_fake_tensors_speaks_again_afterwards() -> None:
    capture_step(step())
    assert not logging.getLogger("torch._subclasses.fake_tensor").disabled


@pytest.mark.parametrize("inputs", [(), {}, [3, "x"], {"n": 4}], ids=str)
def test_inputs_without_a_tensor(inputs: Any) -> None:
    with pytest.raises(ValueError, match=r"^A step's inputs hold no tensor; give the"):
        step(inputs=inputs)


def test_a_batch_without_samples() -> None:
    with pytest.raises(ValueError, match=r"^A step's batch has at least one sample, not 0"):
        step(inputs=torch.zeros(0, 4))


def test_an_optimizers_name_is_no_optimizer() -> None:
    with pytest.raises(ValueError, match=r"^A step's optimizer cannot be 'adamw'; give an opt"):
        step(optimizer="adamw")


def test_unknown_precision_and_memory_format() -> None:
    with pytest.raises(ValueError, match=r"^The precision 'fp8' is unknown; .* fp32, tf32, bf16"):
        step(precision="fp8")
    with pytest.raises(ValueError, match=r"^The memory format 'nhwc' is unknown; .*channels_last"):
        step(memory_format="nhwc")


def test_the_batch_is_the_first_size_of_the_first_tensor_unless_said() -> None:
    assert step(inputs={"a": 1, "b": [torch.zeros(5, 2), torch.zeros(7)]}).batch == 5
    assert step(inputs=torch.tensor(3.0)).batch == 1
    assert step(num_samples=9).batch == 9
    assert step().title == "Does"
    assert step(name="mine").title == "mine"
