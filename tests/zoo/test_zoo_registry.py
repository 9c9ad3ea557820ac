"""Finding a model by name, and the page that lists them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline import zoo


def test_names_are_those_promised() -> None:
    assert set(zoo.model_names()) == {
        "alexnet",
        "vgg16",
        "resnet18",
        "resnet50",
        "resnet152",
        "densenet121",
        "googlenet",
        "mobilenet-v2",
        "efficientnet-b0",
        "convnext-t",
        "vit-b16",
        "gpt2",
        "gpt2-medium",
        "bert-base",
        "mlp",
        "small-cnn",
        "small-gpt",
    }


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("ResNet-18", "resnet18"),
        ("resnet_50", "resnet50"),
        ("MobileNetV2", "mobilenet-v2"),
        ("efficientnet_b0", "efficientnet-b0"),
        (" GPT2_Medium ", "gpt2-medium"),
        ("small_cnn", "small-cnn"),
    ],
)
def test_spelling_is_lenient(spelling: str, name: str) -> None:
    assert zoo.zoo_entry(spelling).name == name


def test_unknown_name_is_answered_with_the_closest() -> None:
    with pytest.raises(ValueError, match="did you mean 'resnet50'"):
        zoo.build_model("resnet5O")


def test_unknown_name_like_no_other_is_answered_with_all() -> None:
    with pytest.raises(ValueError, match="no model 'qqq': known are ") as raised:
        zoo.zoo_entry("qqq")
    assert all(name in str(raised.value) for name in zoo.model_names())


def test_overrides_reach_the_model() -> None:
    with torch.device("meta"):
        model = zoo.build_model("resnet18", num_classes=7)
        assert model(torch.randn(2, 3, 64, 64)).shape == (2, 7)


def test_unknown_override_lists_the_known() -> None:
    with pytest.raises(
        ValueError, match="'googlenet' takes no argument 'classes'; it takes num_classes, aux"
    ):
        zoo.build_model("googlenet", classes=7)


def test_page_lists_every_model_with_its_parameters() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "zoo.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name in zoo.model_names():
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in zoo.build_model(name).parameters())
        shape = " x ".join(str(size) for size in zoo.zoo_entry(name).input_shape)
        (row,) = [row for row in rows if row.startswith(f"| `{name}` |")]
        assert f"| {count:,} |" in row
        assert f" {shape}" in row


def test_import_does_not_load_scikit_learn() -> None:
    code = "import sys, paceline.zoo; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
