"""Which answer counts: table, networks, roofline; and what happens on other devices."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from paceline.cluster import Device
from paceline.cluster.devices import device_names, load_device
from paceline.kernels import KernelModel, Profile, Timing, load_kernel_model, load_model
from paceline.kernels.family import flop_of
from paceline.kernels.model import CARRIED_UNCERTAINTY
from paceline.kernels.recurrent import recurrent_algorithm
from paceline.kernels.roofline import LAUNCH_S, roofline_s
from paceline.kernels.workspace import Workspaces
from paceline.measure.device_facts import device_of
from paceline.steps import Kernel, Operand, capture_step, zoo_step
from synthetic_profile import DEVICE, activation, few, fitted, law_s, product, profile

KNOWN = next(kernel for kernel in profile().timings if kernel.op == "mm")
NEAR = product(1000, 1000, 1000)
RARE = Kernel("median", (Operand("f32", (1 << 20,)),), outputs=(Operand("f32", ()),))


def model(device: Device = DEVICE) -> KernelModel:
    return KernelModel(device, fitted(), profile().measured())


def test_the_table_answers_first_then_the_networks_then_the_roofline() -> None:
    changed = {**profile().measured(), KNOWN: Timing(12.5, 77)}
    asked = KernelModel(DEVICE, fitted(), changed)
    table, network, thin, unknown = asked.estimate([KNOWN, NEAR, few(99), RARE])
    assert (table.seconds, table.origin) == (12.5, "table")
    assert (asked.workspace_bytes(KNOWN), asked.workspace_bytes(RARE)) == (77, 0)
    assert network.origin == "mlp"
    assert network.seconds == pytest.approx(law_s(NEAR), rel=0.1)
    assert thin.origin == unknown.origin == "roofline"
    assert thin.seconds == roofline_s(few(99), DEVICE)
    assert table.uncertainty < network.uncertainty < unknown.uncertainty


def test_order_and_repetition_make_no_difference() -> None:
    kernels = [NEAR, RARE, KNOWN, NEAR, few(99), KNOWN]
    together = model().estimate(kernels)
    assert together == [model().estimate([kernel])[0] for kernel in kernels]


def test_without_a_fit_everything_is_roofline() -> None:
    estimates = KernelModel(DEVICE).estimate([KNOWN, NEAR, RARE])
    assert {each.origin for each in estimates} == {"roofline"}


def test_roofline_is_the_slower_of_arithmetic_and_memory() -> None:
    device = Device(
        name="plain",
        memory_bytes=1000,
        memory_bandwidth_bytes_per_s=4e9,
        flops={"fp32": 1e12, "bf16": 8e12},
    )
    size = 4096
    full, low = product(size, size, size), product(size, size, size, "bf16")
    assert roofline_s(full, device) == pytest.approx(2 * size**3 / 1e12 + LAUNCH_S)
    assert roofline_s(low, device) == pytest.approx(3 * 2 * size**2 / 4e9 + LAUNCH_S)
    tf32 = Kernel("mm", full.args, "tf32", full.outputs)
    assert roofline_s(tf32, device) == roofline_s(full, device)  # it has no units for it
    copied = activation("relu", 1 << 20)
    assert roofline_s(copied, device) == pytest.approx(8 * 2**20 / 4e9 + LAUNCH_S)


def test_another_device_is_marked_and_less_sure() -> None:
    slow = load_device("v100")
    here, there = model(), model(slow)
    assert there.is_carried
    assert not here.is_carried
    kernels = [KNOWN, NEAR, few(0), activation("relu", 123_456)]
    for kernel, own, carried in zip(
        kernels, here.estimate(kernels), there.estimate(kernels), strict=True
    ):
        assert carried.seconds >= 0.9 * flop_of(kernel) / slow.flops["fp32"]
        assert carried.origin == own.origin
        assert carried.uncertainty >= max(own.uncertainty, CARRIED_UNCERTAINTY)


def test_half_the_device_takes_twice_as_long_but_for_the_launch() -> None:
    half = DEVICE.scaled(arithmetic=0.5, memory=0.5).replace(name="half")
    large = product(4096, 4096, 4096)
    (own,), (carried,) = model().estimate([large]), model(half).estimate([large])
    assert carried.seconds / own.seconds == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(
    ("name", "gigabytes", "device"),
    [
        ("NVIDIA H200", 140, "h200"),
        ("NVIDIA H100 80GB HBM3", 80, "h100"),
        ("NVIDIA A100-SXM4-80GB", 80, "a100"),
        ("NVIDIA A100-SXM4-40GB", 40, "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", 80, "a100-pcie"),
        ("NVIDIA H100 NVL", 94, "h100-nvl"),
        ("NVIDIA L40S", 48, "l40s"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 96, "rtx-pro-6000"),
        ("Tesla V100-SXM2-16GB", 16, "v100"),
        ("Tesla V100-SXM2-32GB", 32, "v100-32gb"),
        ("Tesla T4", 15, "t4"),
        ("NVIDIA L4", 23, "l4"),
        ("NVIDIA GeForce RTX 3090", 24, "rtx3090"),
        ("NVIDIA GeForce RTX 4090", 24, "rtx4090"),
    ],
)
def test_drivers_names_of_built_in_devices(name: str, gigabytes: int, device: str) -> None:
    facts = {"device_name": name, "memory_bytes": gigabytes * 10**9}
    assert device_of(Profile(facts)) == load_device(device)


def test_every_built_in_gpu_is_found_under_some_drivers_name() -> None:
    for name in set(device_names()) - {"cpu-core"}:
        device = load_device(name)
        plain = name.replace("-", " ").upper()
        facts = {"device_name": f"NVIDIA {plain}", "memory_bytes": device.memory_bytes}
        assert device_of(Profile(facts)) == device


def test_a_device_that_is_not_built_in_is_as_fast_as_its_best_kernels() -> None:
    big, small = activation("relu", 10_000_000), activation("exp", 10)
    facts = {"device_name": "Some Xeon", "memory_bytes": 64}
    found = device_of(
        Profile(
            facts,
            {
                product(100, 100, 100): Timing(1e-5),
                product(200, 200, 200): Timing(4e-5),
                product(300, 300, 300, "bf16"): Timing(1e-4),
                big: Timing(0.01),
                small: Timing(1e-12),  # from the cache
                product(1, 1, 1): Timing(None),
            },
        )
    )
    assert (found.name, found.memory_bytes) == ("Some Xeon", 64)
    assert found.flops == pytest.approx({"fp32": 2 * 200**3 / 4e-5, "bf16": 2 * 300**3 / 1e-4})
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(80_000_000 / 0.01)


def test_a_profile_too_small_to_know_its_device() -> None:
    profile = Profile({"device_name": "Some Xeon"}, {product(8, 8, 8): Timing(1e-6)})
    with pytest.raises(ValueError, match=r"^The profile has too few kernels .*larger --budget\.$"):
        device_of(profile)


def test_a_fitted_file_answers_with_the_profile_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.model.safetensors"
    fitted().save(path)
    alone = load_kernel_model("", model=path)
    assert (alone.device, alone.is_carried, alone.table) == (DEVICE, False, {})
    beside = tmp_path / "other.model.safetensors"
    fitted().save(beside)
    profile().save(tmp_path / "other.kernels.gz")
    both = load_kernel_model("h200", model=beside)
    assert both.estimate([KNOWN])[0].origin == "table"
    assert both.estimate([KNOWN])[0].seconds == pytest.approx(law_s(KNOWN), rel=1e-4)
    carried = load_kernel_model("a100", model=beside)
    assert carried.is_carried
    assert carried.device == load_device("a100")
    assert load_model(beside).device == DEVICE


def test_an_unknown_device_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mine.model.safetensors"
    fitted().save(path)
    with pytest.raises(
        ValueError, match=r"^There is no device 'h300'; take one of a10, "
    ) as raised:
        load_kernel_model("h300", model=path)
    assert "\n" not in str(raised.value)


def recurrent(
    length: int,
    batch: int,
    width: int,
    num_layers: int,
    *,
    given_width: int | None = None,
    both: bool = False,
) -> Kernel:
    given = Operand("f32", (length, batch, given_width or width))
    args = (given, "lstm", width, 0, num_layers, True, False, False, both)
    return Kernel("recurrent", args, outputs=(given,))


def test_workspaces_of_recurrent_layers_follow_a_formula() -> None:
    def needed_bytes(length: int, batch: int, width: int, num_layers: int) -> int:
        weights = num_layers * 4 * width * 2 * width
        return num_layers * (8 << 20) + 4 * weights + 3 * 4 * length * batch * width

    rng = random.Random(0)
    sizes = [
        (rng.randint(8, 500), rng.randint(1, 300), 32 * rng.randint(1, 40), rng.randint(1, 4))
        for _ in range(60)
    ]
    table = {recurrent(*each): Timing(1e-3, needed_bytes(*each)) for each in sizes}
    spaces = Workspaces(table)
    for unseen in ((64, 512, 768, 2), (300, 32, 1056, 4), (5, 3, 40, 1)):
        found = spaces.estimate("recurrent", recurrent(*unseen))
        assert found == pytest.approx(needed_bytes(*unseen), rel=0.01)
    # Too few to fit the terms to: nothing is claimed.
    few = Workspaces(dict(list(table.items())[:5]))
    assert few.estimate("recurrent", recurrent(64, 512, 768, 2)) == 0


def test_workspaces_of_recurrent_layers_are_those_of_their_algorithm() -> None:
    """States of up to 192 stay on chip, for which cuDNN keeps several copies of all of them."""

    def needed_bytes(length: int, batch: int, width: int, num_layers: int) -> int:
        copies = 20 if width <= 192 else 3
        return copies * 4 * length * batch * width + num_layers * (8 << 20)

    rng = random.Random(0)
    sizes = [
        (rng.randint(8, 500), rng.randint(1, 300), rng.choice((64, 128, 192, 256, 512)), 1)
        for _ in range(80)
    ]
    table = {recurrent(*each): Timing(1e-3, needed_bytes(*each)) for each in sizes}
    spaces = Workspaces(table)
    for unseen in ((64, 512, 96, 1), (300, 32, 1056, 1)):
        found = spaces.estimate("recurrent", recurrent(*unseen))
        assert found == pytest.approx(needed_bytes(*unseen), rel=0.01)


def test_two_directions_need_less_than_twice_the_workspace() -> None:
    def needed_bytes(length: int, batch: int, width: int, *, both: bool) -> int:
        return (28 if both else 20) * 4 * length * batch * width

    rng = random.Random(0)
    table = {}
    for _ in range(80):
        sizes = rng.randint(8, 500), rng.randint(1, 300), rng.choice((64, 96, 128))
        both, given_width = rng.random() < 0.5, rng.choice((16, 40, 200, 300))
        kernel = recurrent(*sizes, 1, given_width=given_width, both=both)
        table[kernel] = Timing(1e-3, needed_bytes(*sizes, both=both))
    spaces = Workspaces(table)
    for both in (False, True):
        found = spaces.estimate("recurrent", recurrent(64, 512, 80, 1, given_width=50, both=both))
        assert found == pytest.approx(needed_bytes(64, 512, 80, both=both), rel=0.01)


def test_workspaces_are_those_of_the_nearest_measured_kernels() -> None:
    def convolution(channels: int) -> Kernel:
        image, weight = Operand("f32", (8, channels, 28, 28)), Operand("f32", (64, channels, 3, 3))
        output = Operand("f32", (8, 64, 26, 26))
        settings = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
        return Kernel("convolution", (image, weight, None, *settings), outputs=(output,))

    table = {}
    for channels in range(8, 16):
        kernel = convolution(channels)
        table[kernel] = Timing(1e-3, 2 * kernel.num_bytes)
    for channels in range(1000, 1008):
        table[convolution(channels)] = Timing(1e-3, 0)
    spaces = Workspaces(table)
    near, far = convolution(20), convolution(900)
    assert spaces.estimate("convolution", near) == 2 * near.num_bytes
    assert spaces.estimate("convolution", far) == 0
    assert spaces.estimate("attention", near) == 0


def test_how_recurrent_layers_run() -> None:
    """PyTorch's rules: narrow states stay on the chip, in fp16 also some weights."""
    given = {name: Operand(name, (50, 32, 256)) for name in ("f32", "f16", "bf16")}

    def algorithm(op: str, dtype: str, kind: str, width: int, *, layers: int = 1) -> str:
        args = (given[dtype], kind, width, 0, layers, True, False, False, False)
        return recurrent_algorithm(Kernel(op, args, outputs=(given[dtype],)))

    assert algorithm("recurrent", "f32", "lstm", 192) == "small states stay"
    assert algorithm("recurrent_backward", "f32", "lstm", 192) == "step by step"
    assert algorithm("recurrent_backward", "f32", "rnn_tanh", 256) == "small states stay"
    assert algorithm("recurrent", "bf16", "lstm", 64) == "step by step"
    assert algorithm("recurrent", "f16", "lstm", 512) == "weights stay"
    assert algorithm("recurrent", "f16", "lstm", 512, layers=2) == "step by step"
    assert algorithm("recurrent", "f16", "gru", 512) == "step by step"


def test_a_whole_step_is_answered_kernel_by_kernel() -> None:
    capture = capture_step(zoo_step("small-gpt", batch=4, precision="bf16"))
    kernels = list(capture.kernels())
    estimates = model().estimate(kernels)
    assert len(estimates) == len(kernels)
    assert {each.origin for each in estimates} == {"mlp", "roofline"}
    assert all(each.seconds > 0 for each in estimates)
