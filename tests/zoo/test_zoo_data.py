"""The embedded data sets."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from paceline import zoo


def rows(images: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


@pytest.mark.parametrize("name", zoo.data_names())
def test_tensors_have_the_declared_shapes_and_values(name: str) -> None:
    data = zoo.load_data(name)
    for part in (data.train, data.test):
        inputs, targets = part.tensors
        assert inputs.shape == (len(part), *data.input_shape)
        assert targets.dtype == torch.long
        assert targets.min() >= 0 and targets.max() < data.num_classes
        assert inputs.isfinite().all()
    assert data.name == name


@pytest.mark.parametrize("model_name", ["small-cnn", "mlp", "small-gpt"])
def test_default_data_fits_the_model(model_name: str) -> None:
    data = zoo.load_data_for(model_name, zoo.default_data_for(model_name))
    inputs, targets = data.test[:2]
    assert inputs.shape[1:] == data.input_shape == zoo.zoo_entry(model_name).input_shape
    assert zoo.build_model(model_name)(inputs).shape == (*targets.shape, data.num_classes)


def test_data_that_does_not_fit_the_model() -> None:
    with pytest.raises(ValueError, match=r"small-cnn reads inputs of shape \(1, 8, 8\)"):
        zoo.load_data_for("small-cnn", "stdlib-text")
    # A text of 64 characters has as many numbers as the features.
    with pytest.raises(ValueError, match="leave --data out"):
        zoo.load_data_for("mlp", "stdlib-text")


def test_digits_are_split_by_class() -> None:
    data = zoo.load_data("digits")
    train_labels, test_labels = data.train.tensors[1], data.test.tensors[1]
    assert (len(train_labels), len(test_labels)) == (1437, 360)
    of_each = torch.bincount(torch.cat([train_labels, test_labels]))
    assert (torch.bincount(test_labels) - of_each / 5).abs().max() <= 1


def test_digits_parts_make_up_the_whole_and_share_nothing() -> None:
    from sklearn.datasets import load_digits

    data = zoo.load_data("digits", seed=5)
    train, test = data.train.tensors[0], data.test.tensors[0]
    assert rows(train).isdisjoint(rows(test))
    # undo the standardisation with what the blank and the full pixel became
    both = torch.cat([train, test]).flatten(1)
    pixels = ((both - both.min()) / (both.max() - both.min()) * 16).round()
    original = torch.tensor(load_digits().data)
    assert torch.equal(
        torch.tensor(sorted(pixels.tolist())), torch.tensor(sorted(original.tolist())).float()
    )


def test_digits_are_standardised_by_the_training_part() -> None:
    images = zoo.load_data("digits").train.tensors[0]
    assert images.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert images.std().item() == pytest.approx(1.0, abs=1e-5)


def test_seed_decides_the_split() -> None:
    def images(seed: int) -> Tensor:
        return zoo.load_data("digits", seed).test.tensors[0]

    assert torch.equal(images(1), images(1))
    assert rows(images(1)) != rows(images(2))


def decoded(part: TensorDataset) -> list[str]:
    """The windows as text: the inputs, and of the targets the last character."""
    inputs, targets = part.tensors
    windows = torch.cat([inputs, targets[:, -1:]], dim=1)
    return [bytes(window).decode("ascii") for window in windows.tolist()]


def test_text_is_what_the_source_says() -> None:
    data = zoo.load_data("stdlib-text")
    text = "".join(decoded(data.train) + decoded(data.test))
    source = Path(sysconfig.get_path("stdlib"), "argparse.py").read_text(encoding="utf-8")
    source = "".join(character if ord(character) < 128 else "?" for character in source)
    length = min(len(source), len(text))
    assert length > 50_000
    assert text[:length] == source[:length]


def test_text_targets_follow_their_inputs() -> None:
    inputs, targets = zoo.load_data("stdlib-text").train.tensors
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_text_is_split_by_position() -> None:
    data = zoo.load_data("stdlib-text")
    assert (len(data.train), len(data.test)) == (2000, 222)
    longer = zoo.load_stdlib_text(max_train_windows=4000)
    assert decoded(data.train) + decoded(data.test) == decoded(longer.train)[:2222]


def test_text_size_and_context_can_be_chosen() -> None:
    data = zoo.load_stdlib_text(context=16, max_train_windows=90)
    assert (len(data.train), len(data.test)) == (90, 10)
    assert data.input_shape == (16,)


def test_text_is_the_same_every_time() -> None:
    once, again = zoo.load_data("stdlib-text", 1), zoo.load_data("stdlib-text", 2)
    assert torch.equal(once.train.tensors[0], again.train.tensors[0])


def test_characters_beyond_ascii_are_replaced_and_absent_files_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ast.py").write_text("né→" * 20, encoding="utf-8")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    data = zoo.load_stdlib_text(context=2)
    assert set(decoded(data.train) + decoded(data.test)) == {"n??"}


def test_python_without_its_source_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(ValueError, match="comes with its library's source"):
        zoo.load_data("stdlib-text")


def test_missing_scikit_learn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install 'paceline\[lab\]'"):
        zoo.load_data("digits")


def test_names_are_lenient_and_unknown_ones_explained() -> None:
    assert zoo.load_data("Stdlib_Text").name == "stdlib-text"
    with pytest.raises(ValueError, match="no data set 'mnist': known are digits, stdlib-text"):
        zoo.load_data("mnist")


def test_models_without_data_are_explained() -> None:
    with pytest.raises(ValueError, match="fits the model 'resnet50'"):
        zoo.default_data_for("ResNet-50")
