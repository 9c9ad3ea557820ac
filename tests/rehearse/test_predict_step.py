"""Predictions of whole steps, added up again from their kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from paceline.cluster.devices import load_device
from paceline.cluster.host import Host
from paceline.kernels import KernelModel
from paceline.kernels.host import HostCosts
from paceline.rehearse import Prediction, predict
from paceline.rehearse.compute import compute_cost
from paceline.steps import Step, capture_step, zoo_step
from paceline.steps.source import OPTIMIZERS, classification_loss
from synthetic_profile import DEVICE, fitted, profile

FREE_HOST = HostCosts()
SLOW_HOST = HostCosts(
    dispatch_s={"mm": 1e-3},
    factors={
        "forward": 1.0,
        "backward": 1.0,
        "optimizer": 1.0,
        "modules": 0.0,
        "nodes": 0.0,
        "steps": 0.0,
    },
    spread=0.123,
)


def model(host: HostCosts = FREE_HOST, device_type: str = "cuda") -> KernelModel:
    facts = {**profile().facts, "device_type": device_type}
    return KernelModel(DEVICE, replace(fitted(), host=host, facts=facts), profile().measured())


def check(prediction: Prediction) -> None:
    parts = prediction.compute_s + prediction.exposed_communication_s + prediction.host_s
    assert parts == pytest.approx(prediction.step_s)
    assert min(prediction.compute_s, prediction.step_s) > 0
    assert prediction.host_s >= 0
    assert sum(prediction.method.values()) == pytest.approx(1.0)
    assert prediction.throughput_per_s == pytest.approx(prediction.batch / prediction.step_s)
    assert prediction.fits == (prediction.memory_bytes <= prediction.memory_limit_bytes)


@pytest.mark.parametrize("name", ["small-cnn", "small-gpt", "mlp"])
def test_a_step_that_the_device_limits_is_the_sum_of_its_kernels(name: str) -> None:
    capture = capture_step(zoo_step(name, batch=64))
    prediction = predict(capture, kernel_model=model())
    check(prediction)
    estimates = model().estimate(capture.kernels())
    assert prediction.step_s == pytest.approx(math.fsum(each.seconds for each in estimates))
    assert (prediction.host_s, prediction.host_issue_s) == (0.0, 0.0)
    for origin, share in prediction.method.items():
        of_it = math.fsum(each.seconds for each in estimates if each.origin == origin)
        assert share == pytest.approx(of_it / prediction.step_s)
    workspaces = max(model().workspace_bytes(kernel) for kernel in capture.kernels())
    least = capture.tensors_peak_bytes + profile().facts["library_bytes"]
    assert least <= prediction.memory_bytes <= least + workspaces
    assert prediction.memory_limit_bytes == DEVICE.memory_bytes


def test_a_step_that_the_host_limits_takes_what_the_host_takes() -> None:
    capture = capture_step(zoo_step("mlp", batch=4))
    prediction = predict(capture, kernel_model=model(SLOW_HOST))
    check(prediction)
    assert prediction.step_s == pytest.approx(1e-3 * len(capture.calls))
    assert prediction.host_issue_s == prediction.step_s
    assert prediction.compute_s == predict(capture, kernel_model=model()).compute_s
    assert prediction.bottleneck == "host"
    assert prediction.uncertainty == 0.123


def test_on_a_cpu_host_and_kernels_come_one_after_the_other() -> None:
    capture = capture_step(zoo_step("mlp", batch=4))
    prediction = predict(capture, kernel_model=model(SLOW_HOST, "cpu"))
    check(prediction)
    assert prediction.step_s == pytest.approx(
        1e-3 * len(capture.calls) + predict(capture, kernel_model=model()).compute_s
    )


class Summed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, rows: Tensor) -> Tensor:
        made = self.inner(rows)
        total: Tensor = (made[0] if isinstance(made, tuple) else made).sum()
        return total


def test_the_bottleneck_is_what_most_of_the_time_goes_into() -> None:
    with torch.device("meta"):
        products = Step(model=Summed(nn.Linear(4096, 4096)), inputs=torch.empty(65536, 4096))
        streams = Step(
            model=Summed(nn.Sequential(nn.Linear(8, 8), *(nn.Tanh() for _ in range(20)))),
            inputs=torch.empty(1 << 24, 8),
        )
    assert predict(products, kernel_model=model()).bottleneck == "arithmetic"
    assert predict(streams, kernel_model=model()).bottleneck == "memory bandwidth"


def test_an_unknown_operator_is_timed_and_named() -> None:
    step = Step(
        model=nn.Linear(16, 16),
        inputs=torch.randn(5, 16),
        loss=lambda output, _: torch.fft.rfft(output).abs().sum(),
    )
    prediction = predict(step, kernel_model=model())
    check(prediction)
    (warning,) = prediction.warnings
    assert warning.startswith("No kernel family knows _fft_")
    assert "roofline" in warning
    assert prediction.method["roofline"] > 0


def test_a_host_that_may_be_the_limit_widens_the_range() -> None:
    capture = capture_step(zoo_step("small-gpt", batch=64))
    slow = model(SLOW_HOST)
    alone = compute_cost(capture, slow)
    device_s, host_s = alone.timeline.device_s, alone.timeline.host_s

    def uncertainty(share: float) -> float:
        """With a host that issues in a share of the device's time, and may be off by a tenth."""
        host = Host(speed=host_s / (share * device_s), source="measured")
        return compute_cost(capture, slow, host=host).uncertainty

    far, near = uncertainty(0.3), uncertainty(0.99)
    doubt = math.hypot(SLOW_HOST.spread, 0.1)
    assert near == pytest.approx(max(far, 0.99 * (1 + doubt) - 1), rel=0.02)


def test_another_device_is_marked_as_extrapolated() -> None:
    capture = capture_step(zoo_step("small-gpt", batch=64))
    here = predict(capture, kernel_model=model())
    carried = KernelModel(load_device("v100"), fitted(), profile().measured())
    there = predict(capture, kernel_model=carried)
    check(there)
    assert (here.extrapolated, there.extrapolated) == (False, True)
    assert here.warnings == ()
    (warning,) = there.warnings
    assert warning.startswith("v100 was not measured: kernels are transferred from h200; ")
    assert "% on average" in warning
    assert there.step_s > here.step_s
    assert there.uncertainty > here.uncertainty
    assert (there.device, there.memory_limit_bytes) == ("v100", 16_000_000_000)


def test_a_device_without_a_precision_is_said_to_compute_in_fp32() -> None:
    half, full = zoo_step("mlp", batch=4, precision="bf16"), zoo_step("mlp", batch=4)
    said = predict(half, device="v100").warnings
    assert said[0] == "v100 has no arithmetic in bf16: products are timed as in fp32."
    assert not [each for each in predict(full, device="v100").warnings if "arithmetic" in each]
    assert not predict(half, device="h200").warnings


def test_without_any_measurement_the_prediction_says_so() -> None:
    prediction = predict(zoo_step("mlp", batch=2), kernel_model=KernelModel(DEVICE))
    check(prediction)
    assert prediction.method["roofline"] == 1.0
    assert "everything is timed by roofline" in prediction.warnings[0]


def test_a_step_too_large_for_the_device_does_not_fit() -> None:
    small, large = (
        predict(zoo_step("small-cnn", batch=n), kernel_model=model()) for n in (2, 1_000_000)
    )
    assert (small.fits, large.fits) == (True, False)
    check(large)


def test_a_step_and_its_capture_are_predicted_alike() -> None:
    step = zoo_step("small-cnn", batch=8, precision="bf16")
    assert predict(step, kernel_model=model()) == predict(capture_step(step), kernel_model=model())


def test_a_prediction_as_plain_values() -> None:
    prediction = predict(zoo_step("small-cnn", batch=8, precision="bf16"), kernel_model=model())
    values = prediction.to_dict()
    assert (values["model"], values["batch"], values["precision"]) == ("small-cnn", 8, "bf16")
    assert type(values["method"]) is dict
    assert type(values["warnings"]) is list
    assert values.pop("range_s") == list(prediction.range_s)
    again = Prediction(**{**values, "warnings": tuple(values["warnings"])})
    assert again == prediction


def test_what_comes_with_paceline_answers_for_the_h200() -> None:
    step = zoo_step("resnet50", batch=256, precision="bf16")
    prediction = predict(step, device="h200")
    check(prediction)
    assert not prediction.extrapolated
    assert prediction.warnings == ()
    assert prediction.method["table"] + prediction.method["mlp"] > 0.95
    # As measured on the H200 (docs/results/kernel_steps_h200.json.gz).
    assert prediction.step_s == pytest.approx(105.7e-3, rel=0.05)
    assert prediction.memory_bytes == pytest.approx(11.81e9, rel=0.05)
    assert prediction.bottleneck in ("arithmetic", "memory bandwidth")
    assert 0 < prediction.uncertainty < 0.2


def test_what_comes_with_paceline_is_carried_to_other_devices() -> None:
    capture = capture_step(zoo_step("resnet50", batch=128))
    steps = {name: predict(capture, device=name) for name in ("h200", "h100", "a100", "v100", "t4")}
    times = [each.step_s for each in steps.values()]
    assert times == sorted(times)
    assert [each.extrapolated for each in steps.values()] == [False, True, True, True, True]
    own = predict(capture, device=load_device("a100").replace(name="mine"))
    assert own.step_s == pytest.approx(steps["a100"].step_s)


def test_a_tiny_step_on_the_h200_is_limited_by_the_host() -> None:
    prediction = predict(zoo_step("mlp", batch=2), device="h200")
    check(prediction)
    assert prediction.bottleneck == "host"
    assert prediction.step_s == pytest.approx(prediction.host_issue_s)


def tagging(kind: Callable[..., nn.Module], *, width: int, batch: int, length: int) -> Step:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = kind(48, width, batch_first=True)

        def forward(self, frames: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.layers(frames)[0]
            return outputs[:, -1]

    with torch.device("meta"):
        return Step(
            model=Tagger(),
            inputs=torch.randn(batch, length, 48),
            targets=torch.zeros(batch, dtype=torch.int64),
            loss=classification_loss,
            optimizer=OPTIMIZERS["sgd"],
        )


@pytest.mark.parametrize("device", ["h200", "cpu", "cpu-core"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_learned(device: str, kind: Callable[..., nn.Module]) -> None:
    found = predict(tagging(kind, width=160, batch=4, length=30), device=device)
    # On a CPU the networks know nothing of the loss's first gradient: one number that is written.
    assert found.method["roofline"] == 0 or (device != "h200" and found.method["roofline"] < 0.005)
    assert found.warnings == ()


def test_recurrent_layers_far_from_all_measured_ones_are_warned_of() -> None:
    # Of an H200's profile the largest batch is 49,152.
    found = predict(tagging(nn.GRU, width=72, batch=400_000, length=24), device="h200")
    (warning,) = found.warnings
    assert warning.startswith("No recurrent layers of such a size were measured")
    assert found.uncertainty > 0.3


def test_every_kind_of_worker_is_warned_of() -> None:
    found = predict(zoo_step("mlp", batch=8), cluster="mixed")
    for device in ("v100", "rtx3090"):
        assert sum(device in warning for warning in found.warnings) == 1
    assert found.extrapolated
