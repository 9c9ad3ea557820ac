"""Steps from zoo names and from the user's own code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.optim import SGD, Adam, AdamW

from paceline.measure.real_step import training_loop
from paceline.steps import Step, capture_step, load_step
from paceline.zoo import model_names, zoo_entry

OWN = """
import torch
from torch import nn
from paceline.steps import Step

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(2 * 4 * 4, 7))

def step():
    return Step(model=nn.Linear(4, 4), inputs=torch.zeros(5, 4), loss=lambda out, _: out.sum())

def shapes():
    with torch.device("meta"):
        return Step(model=nn.Linear(4, 4), inputs=torch.zeros(5, 4), loss=lambda out, _: out.sum())

def exact():
    return Step(
        model=nn.Linear(4, 4), inputs=torch.zeros(5, 4), loss=lambda out, _: out.sum(),
        precision="fp16", memory_format="channels_last", name="mine",
    )

def sized(batch=3):
    return Step(model=nn.Linear(4, 4), inputs=torch.zeros(batch, 4), loss=lambda out, _: out.sum())

def asking(batch):
    return sized(batch)

def fails():
    raise RuntimeError("no weights here")

def wants(argument):
    return make()

number = 3

def text():
    return "resnet"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of the user's own, where the user stands."""
    (tmp_path / "own_model.py").write_text(OWN)
    (tmp_path / "broken_model.py").write_text("def make(:\n")
    (tmp_path / "needy_model.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("own_model", "broken_model", "needy_model"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", model_names())
def test_zoo_steps_are_on_meta_and_have_the_entrys_batch(name: str) -> None:
    step, entry = load_step(name, batch=3), zoo_entry(name)
    assert {each.device.type for each in (*step.model.parameters(), step.inputs, step.targets)} == {
        "meta"
    }
    assert step.inputs.shape == (3, *entry.input_shape)
    assert step.inputs.is_floating_point() == (entry.kind != "text")
    assert step.targets.shape == ((3, *entry.input_shape) if entry.kind == "text" else (3,))
    assert (step.batch, step.title) == (3, name)


def test_text_has_adamw_and_images_have_sgd_unless_said() -> None:
    def kind(name: str, optimizer: str | None = None) -> type:
        step = load_step(name, batch=1, optimizer=optimizer)
        return type(step.make_optimizer(step.model.parameters()))

    assert kind("small-gpt") is AdamW
    assert kind("small-cnn") is SGD
    assert kind("small-cnn", "adam") is Adam
    assert kind("small-gpt", "sgd") is SGD


@pytest.mark.parametrize("where", ["own_model", "own_model.py", "{path}/own_model.py"])
def test_a_module_is_taken_for_an_image_classifier(own: Path, where: str) -> None:
    source = f"{where.format(path=own)}:make"
    step = load_step(source, batch=6, precision="bf16", input_shape=(2, 4, 4), num_classes=7)
    assert step.inputs.shape == (6, 2, 4, 4)
    assert step.targets.shape == (6,)
    assert (step.precision, step.title) == ("bf16", source)
    assert capture_step(step).num_parameters == 2 * 4 * 4 * 7 + 7


def test_a_step_is_taken_with_precision_and_format_where_it_has_none(own: Path) -> None:
    step = load_step(
        "own_model:step", batch=5, precision="bf16", memory_format="channels_last", optimizer="adam"
    )
    assert isinstance(step, Step)
    assert (step.batch, step.precision, step.memory_format) == (5, "bf16", "channels_last")
    assert step.title == "own_model:step"
    assert isinstance(step.make_optimizer(step.model.parameters()), Adam)
    exact = load_step("own_model:exact", precision="bf16")
    assert (exact.precision, exact.memory_format, exact.title) == ("fp16", "channels_last", "mine")


def test_a_callable_that_takes_a_batch_gets_it(own: Path) -> None:
    assert load_step("own_model:sized", batch=9).batch == 9
    assert load_step("own_model:sized").batch == 3
    assert load_step("own_model:asking").batch == load_step("mlp").batch == 32
    with pytest.raises(ValueError, match=r"^own_model:step returned a step with a batch of 5, not"):
        load_step("own_model:step", batch=9)


@pytest.mark.parametrize("source", ["small-cnn", "own_model:make", "own_model:step"])
def test_on_a_device_a_step_can_really_run(own: Path, source: str) -> None:
    shape = (2, 4, 4) if source == "own_model:make" else (3, 224, 224)
    step = load_step(source, input_shape=shape, num_classes=7, device="cpu")
    before = [each.detach().clone() for each in step.model.parameters()]
    training_loop(step)()
    after = list(step.model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_what_has_no_values_cannot_run(own: Path) -> None:
    with pytest.raises(ValueError, match=r"^own_model:shapes has tensors on the meta device"):
        load_step("own_model:shapes", device="cpu")
    assert capture_step(load_step("own_model:shapes")).num_parameters == 20


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("resnet5", r"The zoo has no model 'resnet5'.*did you mean 'resnet50'"),
        ("nosuch.py:make", r"There is no file nosuch\.py"),
        ("nosuchmodule:make", r"There is no module 'nosuchmodule'"),
        ("needy_model:make", r"There is no module 'no_such_library'"),
        ("broken_model.py:make", r"broken_model\.py.*invalid syntax"),
        ("broken_model:make", r"broken_model.*invalid syntax"),
        ("own_model.py:nosuch", r"own_model\.py has no 'nosuch'"),
        ("own_model.py:number", r"own_model\.py:number is not callable"),
        ("own_model.py:text", r"own_model\.py:text returned a str; it must return an nn\.Module"),
        ("own_model.py:wants", r"own_model\.py:wants.*argument"),
        ("own_model.py:fails", r"own_model\.py:fails.*no weights here"),
        (":make", r"module"),
    ],
)
def test_sources_that_give_no_step(own: Path, source: str, match: str) -> None:
    with pytest.raises(ValueError, match=match) as raised:
        load_step(source)
    assert "\n" not in str(raised.value)


def test_impossible_settings() -> None:
    with pytest.raises(ValueError, match=r"^A batch of 0 has no samples; give at least 1\."):
        load_step("mlp", batch=0)
    with pytest.raises(ValueError, match=r"^The optimizer 'lion' is unknown; take sgd, adam, adam"):
        load_step("mlp", optimizer="lion")
    with pytest.raises(ValueError, match=r"^The precision 'int8' is unknown"):
        load_step("mlp", precision="int8")  # type: ignore[arg-type]


def test_a_zoo_model_costs_no_memory() -> None:
    step = load_step("vgg16", batch=256)
    assert all(each.is_meta for each in step.model.buffers())
    assert step.inputs.is_meta
    assert torch.empty(1).device.type == "cpu"
