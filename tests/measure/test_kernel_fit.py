"""Networks fitted to a profile whose law is known."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.kernels import (
    FittedModel,
    KernelModel,
    Profile,
    Timing,
    load_model,
)
from paceline.kernels.family import bytes_of
from paceline.kernels.features import features_of
from paceline.kernels.mlp import Ensemble
from paceline.kernels.model import ROOFLINE_UNCERTAINTY, Estimate
from paceline.kernels.roofline import roofline_s
from paceline.measure.kernel_fit import fit_profile, prevalence
from paceline.steps import Kernel, Operand
from synthetic_profile import (
    DEVICE,
    activation,
    few,
    fitted,
    law_s,
    one_thread,
    product,
    profile,
    some_kernels,
)

pytestmark = pytest.mark.usefixtures("on_one_thread")
UNSEEN = [kernel for kernel in some_kernels(1, 300) if kernel not in profile().timings]


@pytest.fixture(scope="module")
def on_one_thread() -> Iterator[None]:
    with one_thread():
        yield


def seconds(model: FittedModel, kernels: list[Kernel]) -> np.ndarray:
    return np.array([each.seconds for each in KernelModel(DEVICE, model).estimate(kernels)])


def test_a_known_law_is_learned_on_unseen_kernels() -> None:
    assert len(UNSEEN) > 250
    assert set(fitted().ensembles) == {"matmul", "pointwise"}
    wanted = np.array([law_s(kernel) for kernel in UNSEEN])
    errors = np.abs(np.log(seconds(fitted(), UNSEEN) / wanted))
    assert errors.mean() < 0.02
    assert np.quantile(errors, 0.95) < 0.06
    # The roofline alone is far off, so it was learned and not guessed.
    roofline = KernelModel(DEVICE).estimate(UNSEEN)
    guesses = np.array([each.seconds for each in roofline])
    assert np.abs(np.log(guesses / wanted)).mean() > 0.3


def test_residuals_tell_the_error_on_unseen_kernels() -> None:
    for name, ops in (("matmul", ("mm",)), ("pointwise", ("relu", "exp"))):
        kernels = [kernel for kernel in UNSEEN if kernel.op in ops]
        wanted = np.array([law_s(kernel) for kernel in kernels])
        real = np.sqrt((np.log(seconds(fitted(), kernels) / wanted) ** 2).mean())
        residual = fitted().ensembles[name].residual  # type: ignore[index]
        assert 0.5 * real < residual < 4 * real  # one member is worse than all of them


def test_doubt_grows_with_the_distance_from_what_was_measured() -> None:
    model = KernelModel(DEVICE, fitted())
    sizes = (1 << 22, 1 << 28, 1 << 34)
    doubts = [model.estimate([activation("relu", size)])[0].uncertainty for size in sizes]
    assert doubts == sorted(doubts)
    assert doubts[2] > 1.5 * doubts[0]


def test_beyond_what_was_measured_efficiency_saturates() -> None:
    far = activation("relu", 1 << 34)
    (estimate,) = KernelModel(DEVICE, fitted()).estimate([far])
    assert estimate.origin == "mlp"
    assert estimate.seconds == pytest.approx(law_s(far), rel=0.1)


def test_an_operator_never_seen_is_between_those_that_were() -> None:
    sizes = [1 << power for power in range(14, 26)]
    new, fast, slow = (
        seconds(fitted(), [Kernel(op, k.args, outputs=k.outputs) for k in like])
        for op in ("tanh", "relu", "exp")
        for like in ([activation("relu", size) for size in sizes],)
    )
    ratio = np.exp(np.log(new / fast).mean())
    assert 0.8 < ratio < np.exp(np.log(slow / fast).mean()) * 1.25


def test_the_same_seed_gives_the_same_weights() -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        model = fit_profile(small, num_steps=30, seed=seed)
        return [each for ensemble in model.ensembles.values() for each in ensemble.weights]

    small = Profile(profile().facts, dict(list(profile().timings.items())[:100]))
    first, again, other = weights(3), weights(3), weights(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_nothing_of_a_network_that_is_left_out_is_used() -> None:
    good = {k: Timing(t.seconds, 0, ("good",)) for k, t in profile().timings.items()}
    wrong = {k: Timing(50 * law_s(k), 0, ("bad", "good")) for k in some_kernels(5, 200)}
    few_of_it = dict(list(good.items())[:450])
    clean = fit_profile(Profile(profile().facts, few_of_it), num_steps=20)
    without = fit_profile(
        Profile(profile().facts, {**few_of_it, **wrong}), num_steps=20, without=["bad"]
    )
    assert seconds(without, UNSEEN[:50]) == pytest.approx(seconds(clean, UNSEEN[:50]), rel=1e-6)


def test_progress_is_told_to_the_end() -> None:
    seen: list[tuple[str, int, int]] = []
    small = Profile(profile().facts, dict(list(profile().timings.items())[:100]))
    fit_profile(small, num_steps=100, report=lambda *each: seen.append(each))
    assert [done for _, done, _ in seen] == [50, 100]
    assert seen[-1] == ("fitting matmul", 100, 100)


def slower_s(kernel: Kernel) -> float:
    """Another device: everything takes longer, what is small even more so."""
    return float(1.7 * law_s(kernel) * (1 + 1e-5 / law_s(kernel)) ** 0.2)


def error_of(model: FittedModel, kernels: list[Kernel]) -> float:
    wanted = np.array([slower_s(kernel) for kernel in kernels])
    return float(np.abs(np.log(seconds(model, kernels) / wanted)).mean())


def test_of_few_kernels_going_on_from_another_device_is_better_than_from_nothing() -> None:
    few = {kernel: Timing(slower_s(kernel)) for kernel in some_kernels(8, 100)}
    here = Profile(profile().facts, few)
    from_nothing = fit_profile(here, num_steps=250)
    adapted = fit_profile(here, num_steps=250, start=fitted())
    assert error_of(adapted, UNSEEN) < 0.5 * error_of(fitted(), UNSEEN)
    assert error_of(adapted, UNSEEN) < 0.7 * error_of(from_nothing, UNSEEN)
    for name, ensemble in adapted.ensembles.items():
        assert ensemble.residual <= from_nothing.ensembles[name].residual


def test_a_start_that_is_of_no_use_is_not_kept() -> None:
    nonsense = {k: Timing(law_s(k) * 10 ** (hash(k.args) % 5)) for k in some_kernels(9, 300)}
    useless = fit_profile(Profile(profile().facts, nonsense), num_steps=100)
    small = Profile(profile().facts, dict(list(profile().timings.items())[:450]))
    plain, started = (fit_profile(small, num_steps=100, start=each) for each in (None, useless))
    for name, ensemble in started.ensembles.items():
        same = zip(ensemble.weights, plain.ensembles[name].weights, strict=True)
        assert all(torch.equal(a, b) for a, b in same)


def test_a_family_of_few_kernels_is_known_if_the_other_device_knows_it() -> None:
    few = {kernel: Timing(slower_s(kernel)) for kernel in some_kernels(8, 40)}
    here = Profile(profile().facts, few)
    assert set(fit_profile(here, num_steps=20, start=fitted()).ensembles) == {"matmul", "pointwise"}
    with pytest.raises(ValueError, match="no measured kernels"):
        fit_profile(here, num_steps=20)


def test_a_profile_without_measurements() -> None:
    planned = Profile(profile().facts, {product(8, 8, 8): Timing(None)})
    with pytest.raises(
        ValueError, match=r"^The profile has no measured kernels; run `paceline mea"
    ):
        fit_profile(planned)


def test_workspaces_of_products_are_not_guessed() -> None:
    model = KernelModel(DEVICE, fitted(), profile().timings)
    assert model.workspace_bytes(UNSEEN[0]) == 0
    assert model.workspace_bytes(few(0)) == 256


def convolution(channels: int, filters: int, side: int) -> Kernel:
    image, weight = Operand("f32", (8, channels, side, side)), (filters, channels, 3, 3)
    settings = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    made = Operand("f32", (8, filters, side, side))
    args = (image, Operand("f32", weight), None, *settings)
    return Kernel("convolution", args, outputs=(made,))


def test_workspaces_of_convolutions_are_learned(tmp_path: Path) -> None:
    """Of the law that few channels need a copy of everything, and many need nothing."""
    rng = random.Random(3)
    sizes = [(rng.randint(1, 96), rng.randint(8, 128), rng.randint(7, 56)) for _ in range(700)]
    kernels = [convolution(*each) for each in sizes]
    timings = {
        kernel: Timing(1e-4, int(bytes_of(kernel)) if kernel.operands[0].shape[1] < 32 else 0)
        for kernel in kernels
    }
    here = Profile(profile().facts, timings)
    made = fit_profile(here, num_steps=300)
    assert set(made.workspaces) == {"convolution"}
    made.save(tmp_path / "some.model.safetensors")
    model = KernelModel(DEVICE, load_model(tmp_path / "some.model.safetensors"))
    unseen = [convolution(rng.randint(1, 96), 77, rng.randint(7, 56)) for _ in range(100)]
    clear = [kernel for kernel in unseen if abs(kernel.operands[0].shape[1] - 32) > 6]
    for kernel in clear:
        needed = bytes_of(kernel) if kernel.operands[0].shape[1] < 32 else 0
        assert abs(model.workspace_bytes(kernel) - needed) < 0.3 * bytes_of(kernel)
    # A few kernels of another device go on from what is known.
    few_here = Profile(profile().facts, dict(list(timings.items())[:20]))
    assert set(fit_profile(few_here, num_steps=20, start=made).workspaces) == {"convolution"}


def test_kernels_of_networks_and_of_signals_count_more_often() -> None:
    image = convolution(8, 16, 14)
    signal = Kernel(
        "convolution",
        (Operand("f32", (8, 4, 100)), Operand("f32", (4, 4, 3)), None),
        outputs=(Operand("f32", (8, 4, 98)),),
    )
    of_network = convolution(8, 32, 14)
    product = Kernel("mm", (Operand("f32", (4, 4)),) * 2, outputs=(Operand("f32", (4, 4)),))
    timings = {each: Timing(1e-4) for each in (image, signal, product)}
    timings[of_network] = Timing(1e-4, sources=("resnet50",))
    kernels = [image, signal, product, of_network]
    weights = prevalence(kernels, timings)
    assert weights.mean() == pytest.approx(1.0)
    assert list(weights / weights[0]) == pytest.approx([1.0, 3.0, 1.0, 3.0])


def test_a_saved_model_predicts_the_same(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "h200.model.safetensors"
    fitted().save(path)
    again = load_model(path)
    # Weights are stored in half precision.
    assert seconds(again, UNSEEN) == pytest.approx(seconds(fitted(), UNSEEN), rel=0.01)
    assert (again.device, again.facts, again.host) == (DEVICE, profile().facts, fitted().host)
    for name, ensemble in fitted().ensembles.items():
        assert again.ensembles[name].ops == ensemble.ops
        assert again.ensembles[name].residual == ensemble.residual
        assert torch.equal(again.ensembles[name].low, ensemble.low)


def sentence(path: Path) -> str:
    with pytest.raises(ValueError, match=r".") as raised:
        load_model(path)
    text = str(raised.value)
    assert "\n" not in text
    assert str(path) in text
    assert "paceline fit" in text
    return text


def rewritten(path: Path, metadata: dict[str, str] | None) -> None:
    fitted().save(path)
    save_file(load_file(path), path, metadata)


def test_models_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "some.model.safetensors"
    assert "There is no fitted model" in sentence(path)
    fitted().save(path)
    whole = path.read_bytes()
    for length in (0, 5, 1000, len(whole) - 10):
        path.write_bytes(whole[:length])
        assert "is cut off or is no safetensors file" in sentence(path)
    rewritten(path, None)
    assert "is not a kernel model of paceline" in sentence(path)
    rewritten(path, {"format": "paceline-kernel-model", "version": "9"})
    assert "schema version 9, this paceline reads 6" in sentence(path)


def test_an_ensemble_clamps_and_normalises_as_it_says() -> None:
    ensemble = Ensemble(
        ops=("a",),
        mean=torch.tensor([2.0]),
        scale=torch.tensor([0.5]),
        low=torch.tensor([1.0]),
        high=torch.tensor([3.0]),
        weights=(torch.tensor([[1.0], [10.0]]).expand(5, 2, 1),),
        biases=(torch.zeros(5, 1, 1),),
        residual=0.1,
    )
    rows = np.array([[2.5], [3.0], [4.0], [2.5]], dtype=np.float32)
    values, doubts, _ = ensemble.predict(rows, ["a", "a", "a", "b"])
    assert values == pytest.approx([11.0, 12.0, 12.0, 1.0])
    # All members agree: a quarter of the residual, times 1 + how many deviations beyond the range.
    assert doubts == pytest.approx([0.025, 0.025, 0.025 * 3.0, 0.025])


def test_members_that_disagree_are_believed_less() -> None:
    kernel = activation("relu", 1 << 20)
    num_features = features_of([kernel], "pointwise").shape[1]
    members = [-0.2, -0.1, 0.0, 0.1, 0.2]
    ensemble = Ensemble(
        ops=(),
        mean=torch.zeros(num_features),
        scale=torch.ones(num_features),
        low=torch.full((num_features,), -1e6),
        high=torch.full((num_features,), 1e6),
        weights=(torch.zeros(5, num_features, 1),),
        biases=(torch.tensor(members).reshape(5, 1, 1),),
        residual=0.4,
    )
    model = replace(fitted(), ensembles={"pointwise": ensemble})
    (found,) = KernelModel(DEVICE, model).estimate([kernel])
    doubt = math.hypot(3 * statistics.stdev(members), 0.4 / 4)
    assert found.uncertainty == pytest.approx(doubt, rel=1e-5)
    assert found.seconds == pytest.approx(roofline_s(kernel, DEVICE), rel=1e-5)


def test_a_kernel_in_doubt_counts_with_its_mean_and_not_its_median() -> None:
    kernel = activation("relu", 1 << 20)
    known = fitted().ensembles["pointwise"]
    apart = (*known.biases[:-1], known.biases[-1] + 0.1 * torch.arange(5.0).reshape(5, 1, 1))

    def model_of(skew: float) -> FittedModel:
        return replace(fitted(), ensembles={"pointwise": replace(known, biases=apart, skew=skew)})

    (median,) = KernelModel(DEVICE, model_of(0.0)).estimate([kernel])
    (mean,) = KernelModel(DEVICE, model_of(0.4)).estimate([kernel])
    doubt = min(median.uncertainty, 0.5)
    assert mean.seconds == pytest.approx(median.seconds * (1 + 0.4 * doubt**2))
    assert mean.uncertainty == median.uncertainty
    # Another chip is slow with other kernels.
    other = DEVICE.model_copy(update={"name": "other", "multiprocessors": 7})
    (carried,) = KernelModel(other, model_of(0.4)).estimate([kernel])
    assert carried.seconds == KernelModel(other, model_of(0.0)).estimate([kernel])[0].seconds


def test_the_skew_is_what_unseen_kernels_take_longer_on_average() -> None:
    generator = np.random.default_rng(5)
    sizes = generator.integers(12, 28, 600)
    kernels = [activation("relu", (1 << int(size)) + 8 * i) for i, size in enumerate(sizes)]
    # One kernel in ten takes four times as long as its neighbours, and nothing tells which.
    is_odd = generator.random(len(kernels)) < 0.1

    def skew(odd: float, device_type: str = "cuda") -> float:
        seconds = [law_s(k) * (odd if own else 1) for k, own in zip(kernels, is_odd, strict=True)]
        timings = {k: Timing(each) for k, each in zip(kernels, seconds, strict=True)}
        facts = {**profile().facts, "device_type": device_type}
        facts.pop("steps", None)  # capturing them takes longer than the fit
        return fit_profile(Profile(facts, timings), num_steps=80).ensembles["pointwise"].skew

    assert skew(4.0) > 0.3
    assert skew(0.25) == 0
    assert skew(4.0, "cpu") == 0


def test_what_the_members_know_nothing_of_is_left_to_the_roofline() -> None:
    kernel = activation("relu", 1 << 20)
    known = fitted().ensembles["pointwise"]
    scattered = (*known.biases[:-1], known.biases[-1] + torch.arange(5.0).reshape(5, 1, 1))
    unsure = replace(known, biases=scattered)
    model = replace(fitted(), ensembles={"pointwise": unsure})
    (found,) = KernelModel(DEVICE, model).estimate([kernel])
    assert found == Estimate(roofline_s(kernel, DEVICE), "roofline", ROOFLINE_UNCERTAINTY)
