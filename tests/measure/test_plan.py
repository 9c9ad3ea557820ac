"""What a profile plans to measure: every network of the zoo, and random neighbours."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.cluster.device import Precision
from paceline.kernels.family import FAMILIES, bytes_of, family_of, flop_of
from paceline.kernels.library import built_in_profile
from paceline.kernels.profile import Profile, load_profile
from paceline.measure import neighbours
from paceline.measure.kernels import built_in_plan, drawn_plan, make_plan
from paceline.measure.neighbours import draw_neighbours
from paceline.measure.plan import PlanSettings
from paceline.steps import capture_step, zoo_step
from paceline.zoo import model_names

SETTINGS = PlanSettings(
    batches=(2,),
    precisions=("fp32",),
    num_neighbours=200,
    max_neighbours_in_family=10,
    max_flop=1e10,
    max_bytes=3e8,
)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """The whole zoo once: the slowest thing here."""
    path = tmp_path_factory.mktemp("plan") / "small.kernels.gz"
    seen: list[tuple[str, int, int]] = []
    made = make_plan(path, lambda: drawn_plan(SETTINGS, lambda *each: seen.append(each)))
    assert seen[-1] == ("capturing networks", 1000, 1000)
    assert load_profile(path).timings == made.timings
    return made


def test_every_kernel_of_every_network_has_a_family(plan: Profile) -> None:
    families = {family_of(kernel) for kernel in plan.timings if plan.timings[kernel].sources}
    assert families == set(FAMILIES) - {"recurrent"}  # no network of the zoo has such layers
    assert "recurrent" in {family_of(kernel) for kernel in plan.timings}


def test_every_network_is_a_source_and_nothing_is_measured_yet(plan: Profile) -> None:
    sources = {name for timing in plan.timings.values() for name in timing.sources}
    assert sources == set(model_names())
    assert len(plan.planned()) == len(plan.timings) > 1000
    assert plan.measured() == {}


def test_every_kernel_of_a_network_is_there_unless_it_is_too_large(plan: Profile) -> None:
    for name in ("small-gpt", "alexnet"):
        for kernel in capture_step(zoo_step(name, batch=2)).kernels():
            fits = flop_of(kernel) <= 1e10 and bytes_of(kernel) <= 3e8
            assert (kernel in plan.timings) == fits
            assert not fits or name in plan.timings[kernel].sources
    alexnet = list(capture_step(zoo_step("alexnet", batch=2)).kernels())
    assert not all(kernel in plan.timings for kernel in alexnet)  # its optimizer's are large


def test_neighbours_are_few_in_each_family(plan: Profile) -> None:
    counts = dict.fromkeys(FAMILIES, 0)
    for kernel, timing in plan.timings.items():
        if not timing.sources:
            family = family_of(kernel)
            assert family is not None
            counts[family] += 1
    assert max(counts.values()) == 10
    assert sum(counts.values()) > 50


def test_an_early_end_has_seen_all_kinds(plan: Profile) -> None:
    first = list(plan.timings)[: len(plan.timings) // 5]
    assert len({family_of(kernel) for kernel in first}) >= len(FAMILIES) - 2


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_neighbours_are_reproducible_and_known(precision: Precision) -> None:
    def draw(seed: int) -> list[str]:
        found = draw_neighbours(random.Random(seed), precision, 10)
        return [repr(kernel) for kernel in found.kernels]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    kernels = draw_neighbours(random.Random(3), precision, 60).kernels
    unknown = {kernel.op for kernel in kernels if family_of(kernel) is None}
    assert unknown == set()
    assert {"convolution", "matmul"} <= {family_of(kernel) for kernel in kernels}
    low = {"bf16": "bf16", "fp16": "f16"}.get(precision, "f32")
    products = [k for k in kernels if family_of(k) in ("convolution", "matmul")]
    assert {k.operands[0].dtype for k in products} == {low}
    assert any(k.math == "tf32" for k in products) == (low == "f32")


def test_a_good_part_of_the_convolutions_is_channels_last() -> None:
    kernels = draw_neighbours(random.Random(5), "bf16", 150).kernels
    images = [k.operands[1] for k in kernels if k.op == "convolution_backward_weight"]
    share = sum(each.is_channels_last for each in images) / len(images)
    assert 0.15 < share < 0.6


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_few_random_modules_of_any_kind_are_dropped(precision: Precision) -> None:
    """A kind that is dropped often has a fault of its own, not sizes that happen not to fit."""
    drawn = draw_neighbours(random.Random(11), precision, 250)
    assert sum(drawn.tried.values()) == 250
    assert len(drawn.tried) >= 15
    shares = {kind: drawn.dropped[kind] / tries for kind, tries in drawn.tried.items()}
    assert max(shares.values()) <= 1 / 3, shares


def test_what_does_not_fit_is_counted_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(rng: random.Random) -> None:
        nn.Conv2d(3, 8, 9 if rng.random() < 0.5 else 3)(torch.empty(1, 3, 4, 4))

    monkeypatch.setattr(neighbours, "_CASES", ((wide, 1),))
    drawn = draw_neighbours(random.Random(0), "fp32", 40)
    assert drawn.tried == {"wide": 40}
    assert 10 < drawn.dropped["wide"] < 30
    run = sum(kernel.op == "convolution" for kernel in drawn.kernels)
    assert run == 40 - drawn.dropped["wide"]


def test_a_mistake_in_a_random_module_is_not_taken_for_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(rng: random.Random) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(neighbours, "_CASES", ((broken, 1),))
    with pytest.raises(ValueError, match="a mistake"):
        draw_neighbours(random.Random(0), "fp32", 1)


def test_the_profile_says_how_many_random_modules_were_dropped(plan: Profile) -> None:
    counts = plan.facts["neighbours"]
    assert sum(counts["tried"].values()) == SETTINGS.num_neighbours
    assert set(counts["dropped"]) <= set(counts["tried"])


def test_what_comes_with_paceline_is_planned_in_random_order(tmp_path: Path) -> None:
    shipped = load_profile(built_in_profile("cpu"))
    path = tmp_path / "mine.kernels.gz"
    step = zoo_step("mlp", batch=3)
    own = list(dict.fromkeys(capture_step(step).kernels()))
    made = make_plan(path, lambda: built_in_plan("cpu"), steps=[step])
    assert made.measured() == {}
    assert set(made.timings) == {*shipped.timings, *own}
    assert list(made.timings)[: len(own)] == own
    assert load_profile(path).timings == made.timings
    rest = [kernel for kernel in made.timings if kernel not in own]
    assert all(made.timings[each].sources == shipped.timings[each].sources for each in rest)
    # Families come as often early as late: a budget that ends early has seen all kinds.
    half = len(rest) // 2
    early, late = (Counter(map(family_of, part)) for part in (rest[:half], rest[half:]))
    assert all(early[family] == pytest.approx(late[family], rel=0.5) for family in FAMILIES)
