"""The zoo's models against what was published of them, and what all of them must do."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from paceline import zoo
from paceline.zoo.layers import StochasticDepth, truncated_normal_

PUBLISHED_PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "densenet121": 7_978_856,
    "googlenet": 6_624_904,
    "mobilenet-v2": 3_504_872,
    "efficientnet-b0": 5_288_548,
    "convnext-t": 28_589_128,
    "vit-b16": 86_567_656,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "bert-base": 109_482_240,
}

# Multiply-adds of one 224 x 224 image in the forward pass, as torchvision's model table has
# them. Parameters do not see a wrong stride or a missing pooling; these do.
PUBLISHED_GIGA_MACS = {
    "alexnet": 0.71,
    "vgg16": 15.47,
    "resnet18": 1.81,
    "resnet50": 4.09,
    "resnet152": 11.51,
    "densenet121": 2.83,
    "googlenet": 1.50,
    "mobilenet-v2": 0.30,
    "efficientnet-b0": 0.39,
    "convnext-t": 4.46,
    "vit-b16": 17.56,
}

SMALL = ("mlp", "small-cnn", "small-gpt")


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def example_batch(entry: zoo.ZooEntry, batch: int) -> tuple[Tensor, Tensor]:
    """Random inputs and targets of the shape that the entry declares."""
    if entry.kind == "text":
        tokens = torch.randint(entry.num_classes, (batch, *entry.input_shape))
        return tokens, torch.randint(entry.num_classes, tokens.shape)
    return torch.randn(batch, *entry.input_shape), torch.randint(entry.num_classes, (batch,))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_parameter_count_is_the_published_one(name: str) -> None:
    with torch.device("meta"):
        model = zoo.build_model(name)
    assert num_parameters(model) == PUBLISHED_PARAMETERS[name]


def test_parameter_counts_of_the_variants() -> None:
    with torch.device("meta"):
        with_heads = zoo.build_model("googlenet", auxiliary=True)
        to_pretrain = zoo.build_model("bert-base", masked_lm=True)
    assert num_parameters(with_heads) == 13_004_888
    assert num_parameters(to_pretrain) == 109_514_298


def test_small_models_are_of_the_intended_size() -> None:
    with torch.device("meta"):
        sizes = {name: num_parameters(zoo.build_model(name)) for name in SMALL}
        narrower = num_parameters(zoo.build_model("small-cnn", width=35))
    assert 750_000 < sizes["small-cnn"] < 850_000
    assert 400_000 < sizes["small-gpt"] < 800_000
    assert narrower < sizes["small-cnn"] / 3


@pytest.mark.parametrize("name", PUBLISHED_GIGA_MACS)
def test_compute_is_the_published_one(name: str) -> None:
    with torch.device("meta"):
        model = zoo.build_model(name).eval()
        images, _ = example_batch(zoo.zoo_entry(name), batch=1)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(images)
    giga_macs = counter.get_total_flops() / 2e9
    assert giga_macs == pytest.approx(PUBLISHED_GIGA_MACS[name], abs=0.006, rel=0.005)


@pytest.mark.parametrize("name", zoo.model_names())
def test_trains_on_fake_tensors(name: str) -> None:
    entry = zoo.zoo_entry(name)
    with FakeTensorMode():
        model = zoo.build_model(name, **entry.training_overrides)
        inputs, targets = example_batch(entry, batch=2)
        logits = model(inputs)
        torch.autograd.backward(loss_of(logits, targets))
        gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    assert logits.shape == (*targets.shape, entry.num_classes)
    assert [key for key, gradient in gradients.items() if gradient is None] == []


@pytest.mark.parametrize("name", [*SMALL, "resnet18", "mobilenet-v2"])
def test_trains_for_real(name: str) -> None:
    torch.manual_seed(0)
    entry = zoo.zoo_entry(name)
    model = zoo.build_model(name)
    inputs, targets = example_batch(entry, batch=4)
    if inputs.shape[-1] == 224:
        inputs = inputs[..., :64, :64]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    before = loss_of(model(inputs), targets)
    torch.autograd.backward(before)
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    # about the uniform guess: the initialisation neither explodes nor has an opinion
    assert before.item() < 2.0 + torch.tensor(float(entry.num_classes)).log().item()
    optimizer.step()
    assert loss_of(model(inputs), targets).item() < before.item()


def test_same_seed_builds_the_same_weights() -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(zoo.build_model("small-gpt").parameters())

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


def test_auxiliary_heads_speak_only_in_training() -> None:
    with torch.device("meta"):
        model = zoo.build_model("googlenet", auxiliary=True)
        images = torch.randn(2, 3, 224, 224)
        assert [tuple(logits.shape) for logits in model(images)] == [(2, 1000)] * 3
        assert model.eval()(images).shape == (2, 1000)


def test_bert_encoder_returns_hidden_states_and_the_pooled_one() -> None:
    with torch.device("meta"):
        hidden, pooled = zoo.build_model("bert-base")(torch.zeros(2, 16, dtype=torch.long))
    assert hidden.shape == (2, 16, 768)
    assert pooled.shape == (2, 768)


def test_gpt_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    model = zoo.build_model("small-gpt")
    tokens = torch.randint(128, (1, 64))
    changed = tokens.clone()
    changed[0, 40] = (changed[0, 40] + 1) % 128
    difference = (model(tokens) - model(changed)).abs().amax(dim=-1)[0]
    assert difference[:40].max() < 1e-6
    assert difference[40:].min() > 1e-6


def test_mlp_takes_its_sizes_and_flattens() -> None:
    model = zoo.build_model("mlp", num_features=12, hidden=[7], num_classes=3)
    assert num_parameters(model) == 12 * 7 + 7 + 7 * 3 + 3
    assert model(torch.randn(5, 3, 4)).shape == (5, 3)


def test_truncated_normal_is_cut_at_two_deviations() -> None:
    torch.manual_seed(0)
    values = torch.empty(200_000)
    truncated_normal_(values, std=0.5)
    assert values.abs().max() <= 1.0 + 1e-5
    # the standard deviation of a normal that is cut at ±2 is 0.8796 of the whole one's
    assert values.std().item() == pytest.approx(0.5 * 0.8796, rel=0.01)
    assert values.mean().item() == pytest.approx(0.0, abs=0.005)


def test_stochastic_depth_drops_whole_examples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    drop = StochasticDepth(0.25)
    branch = torch.ones(20_000, 3)
    out = drop(branch)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert torch.equal(out.amin(dim=1), out.amax(dim=1))
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)
    assert torch.equal(drop.eval()(branch), branch)


@pytest.mark.parametrize(
    ("name", "overrides", "length"), [("small-gpt", {"context": 8}, 9), ("vit-b16", {}, 96)]
)
def test_input_of_the_wrong_size_is_explained(
    name: str, overrides: dict[str, int], length: int
) -> None:
    with torch.device("meta"):
        model = zoo.build_model(name, **overrides)
        shape = (1, 3, length, length) if name == "vit-b16" else (1, length)
        inputs = torch.zeros(shape, dtype=torch.float if name == "vit-b16" else torch.long)
        with pytest.raises(ValueError, match=f"build it with .*={length}"):
            model(inputs)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("small-gpt", {"width": 10, "num_heads": 3}), ("vit-b16", {"image_size": 100})],
)
def test_sizes_that_do_not_divide_are_explained(name: str, overrides: dict[str, int]) -> None:
    with torch.device("meta"), pytest.raises(ValueError, match="not a multiple of"):
        zoo.build_model(name, **overrides)


def test_descriptions_are_one_line_each() -> None:
    descriptions = [zoo.zoo_entry(name).description for name in zoo.model_names()]
    assert all(text and "\n" not in text for text in descriptions)
    assert all(one != other for one, other in itertools.combinations(descriptions, 2))
