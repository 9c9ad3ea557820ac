"""Batches in containers of the user's own: mappings, named tuples, dataclasses, lists."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from paceline.measure.real_step import training_loop
from paceline.steps import Step, capture_step
from paceline.steps.fake_world import fake_world
from paceline.steps.source import on_device
from paceline.steps.tensors import map_tensors, tensors_in
from real_run import listen_to_second_step


class Encoding(UserDict[str, Any]):
    """As Hugging Face's BatchEncoding: a mapping with attributes besides."""

    def __init__(self, data: dict[str, Any], num_tokens: int) -> None:
        super().__init__(data)
        self.num_tokens = num_tokens


class ReadOnly(Mapping[str, Any]):
    """A mapping that cannot be made anew from its items."""

    def __init__(self, *, images: Tensor, labels: Tensor) -> None:
        self._items = {"images": images, "labels": labels}

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Pair(NamedTuple):
    images: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    images: Tensor
    labels: Tensor
    source: str = "a camera"


class Arguments(list[Tensor]):
    """A list of a class of the user's own."""


class Model(nn.Module):
    """Takes images and labels, or one object that has both, and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5))
        self.layers(torch.zeros(1, 3, 6, 6))

    def forward(self, images: Tensor | Batch, labels: Tensor | None = None) -> Tensor:
        if isinstance(images, Batch):
            return self.forward(images.images, images.labels)
        assert labels is not None
        return nn.functional.cross_entropy(self.layers(images), labels)


def containers(images: Tensor, labels: Tensor) -> dict[str, Any]:
    named = {"images": images, "labels": labels}
    return {
        "user dict": Encoding(named, num_tokens=7),
        "read-only mapping": ReadOnly(**named),
        "named tuple": Pair(images, labels),
        "dataclass": Batch(images, labels),
        "list": Arguments([images, labels]),
    }


NAMES = list(containers(torch.zeros(1), torch.zeros(1)))


def make_step(name: str, **settings: Any) -> Step:
    torch.manual_seed(0)
    inputs = containers(torch.randn(4, 3, 6, 6), torch.randint(5, (4,)))[name]
    return Step(model=Model(), inputs=inputs, **settings)


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_batch_has_its_class_and_no_real_tensor(name: str) -> None:
    step = make_step(name, memory_format="channels_last")
    with fake_world(step) as world:
        images, labels = tensors_in(world.inputs)
        assert isinstance(images, FakeTensor)
        assert isinstance(labels, FakeTensor)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert type(world.inputs) is type(step.inputs)
    assert not any(isinstance(tensor, FakeTensor) for tensor in tensors_in(step.inputs))


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_step_starts_the_kernels_of_a_real_one(name: str) -> None:
    step = make_step(name, optimizer=lambda parameters: torch.optim.SGD(parameters, foreach=True))
    assert step.batch == 4
    assert list(capture_step(step).kernels()) == listen_to_second_step(step).kernels


@pytest.mark.parametrize("name", NAMES)
def test_a_real_step_trains_on_it(name: str) -> None:
    step = on_device(make_step(name), "cpu")
    before = [parameter.detach().clone() for parameter in step.model.parameters()]
    training_loop(step)()
    after = list(step.model.parameters())
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_tensors_without_values_are_found_before_a_real_step_fails(name: str) -> None:
    step = make_step(name)
    with torch.device("meta"):
        shapes = containers(torch.randn(4, 3, 6, 6), torch.randint(5, (4,)))[name]
    with pytest.raises(ValueError, match="on the meta device"):
        on_device(replace(step, inputs=shapes, name="mine"), "cpu")


def test_what_else_is_in_a_batch_is_kept() -> None:
    batches = containers(torch.zeros(2), torch.ones(2))
    changed = map_tensors(batches, lambda tensor: tensor + 1)
    assert changed["user dict"].num_tokens == 7
    assert changed["dataclass"].source == "a camera"
    assert torch.equal(changed["read-only mapping"]["labels"], torch.full((2,), 2.0))
    assert torch.equal(batches["read-only mapping"]["labels"], torch.ones(2))


def test_objects_in_a_circle_are_looked_at_once() -> None:
    @dataclass
    class Link:
        tensor: Tensor
        next: Link | None = None

    first = Link(torch.zeros(1))
    first.next = Link(torch.ones(1), first)
    assert [float(tensor) for tensor in tensors_in(first)] == [0.0, 1.0]
