"""``paceline predict``: what it prints, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import frame, main
from synthetic_profile import fitted, profile

KEYS = {
    "model",
    "device",
    "nodes",
    "workers",
    "batch",
    "precision",
    "strategy",
    "step_s",
    "compute_s",
    "exposed_communication_s",
    "host_s",
    "throughput_per_s",
    "scaling_efficiency",
    "memory_bytes",
    "bottleneck",
    "method",
    "uncertainty",
}
OWN = """
import torch
from torch import nn
from paceline.steps import Step

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 7))

def step():
    return Step(
        model=nn.Linear(4, 4), inputs=torch.zeros(5, 4), loss=lambda out, _: out.sum(), name="mine"
    )

def fourier():
    return Step(
        model=nn.Linear(8, 8),
        inputs=torch.zeros(5, 8),
        loss=lambda out, _: torch.fft.rfft(out).abs().sum(),
    )

def looks():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, rows):
            made = self.linear(rows)
            return made.sum() if made.sum().item() > 0 else made.mean()

    return Step(model=Looks(), inputs=torch.zeros(5, 4))

def fails():
    raise RuntimeError("no weights here")

def nothing():
    return None
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a fitted model of its own, and the user's code."""
    fitted().save(tmp_path / "mine.model.safetensors")
    profile().save(tmp_path / "mine.kernels.gz")
    (tmp_path / "cut.model.safetensors").write_bytes(
        (tmp_path / "mine.model.safetensors").read_bytes()[:5000]
    )
    (tmp_path / "own_net.py").write_text(OWN)
    (tmp_path / "own_syntax.py").write_text("def make(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("own_net", "own_syntax"):
        sys.modules.pop(name, None)


def run(*arguments: str) -> int:
    return frame.run(main.app, ["predict", *arguments])


def predicted(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON object, of the synthetic machine unless another model is named."""
    own = [] if "--device" in arguments else ["--model-file", "mine.model.safetensors"]
    assert run(*arguments, *own, "--json") == 0
    out, err = capsys.readouterr()
    value: dict[str, Any] = json.loads(out)
    assert set(value) >= KEYS
    parts = value["compute_s"] + value["exposed_communication_s"] + value["host_s"]
    assert parts == pytest.approx(value["step_s"])
    assert value["throughput_per_s"] == pytest.approx(
        value["workers"] * value["batch"] / value["step_s"]
    )
    assert sum(value["method"].values()) == pytest.approx(1.0)
    assert err == "".join(f"Note: {warning}\n" for warning in value["warnings"])
    return value


def test_json_has_every_promised_key(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = predicted(capsys, "small-cnn", "--batch", "16", "--precision", "bf16")
    assert (value["model"], value["device"]) == ("small-cnn", "h200")
    assert (value["nodes"], value["workers"], value["strategy"]) == (1, 1, "none")
    assert (value["batch"], value["precision"]) == (16, "bf16")
    assert value["scaling_efficiency"] == 1.0
    assert set(value["method"]) == {"table", "mlp", "roofline"}
    assert value["warnings"] == []


def test_a_table_for_people(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("small-cnn", "--batch", "16", "--model-file", "mine.model.safetensors") == 0
    out, err = capsys.readouterr()
    for words in ("small-cnn, batch 16, fp32, h200", "samples/s", "limited by", "fits", "compute"):
        assert words in out
    assert "█" in out
    assert err == ""


def test_larger_batches_take_longer_and_more_memory(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [predicted(capsys, "small-cnn", "--batch", size) for size in ("64", "4096", "262144")]
    for key in ("step_s", "memory_bytes", "throughput_per_s"):
        assert [value[key] for value in values] == sorted(value[key] for value in values)


def test_flops_and_memory_bandwidth_replace_the_devices(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = predicted(capsys, "small-cnn", "--batch", "65536")
    slow = predicted(
        capsys,
        *("small-cnn", "--batch", "65536"),
        *("--flops", "1 TFLOP/s", "--memory-bandwidth", "100 GB/s"),
    )
    assert (slow["device"], slow["extrapolated"]) == ("h200*", True)
    assert slow["memory_limit_bytes"] == plain["memory_limit_bytes"]
    # 4.8 TB/s to 100 GB/s is 48 times, 66.9 TFLOP/s to 1 is 67, tf32 in convolutions 495.
    assert 40 < slow["step_s"] / plain["step_s"] < 500
    narrow = predicted(capsys, "small-cnn", "--batch", "65536", "--memory-bandwidth", "2.4 TB/s")
    assert 1.0 < narrow["step_s"] / plain["step_s"] <= 2.0


def test_a_model_files_own_device_answers_unless_another_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("mlp", "--model-file", "mine.model.safetensors", "--device", "t4", "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["device"], value["extrapolated"]) == ("t4", True)
    assert not predicted(capsys, "mlp")["extrapolated"]


@pytest.mark.parametrize("where", ["own_net", "own_net.py"])
def test_ones_own_network_and_step(
    here: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    network = predicted(
        capsys, f"{where}:make", "--input", "3x8x8", "--classes", "7", "--batch", "9"
    )
    assert (network["model"], network["batch"]) == (f"{where}:make", 9)
    step = predicted(capsys, f"{where}:step", "--precision", "bf16")
    assert (step["model"], step["batch"], step["precision"]) == ("mine", 5, "bf16")


def test_an_unknown_operator_is_noted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = predicted(capsys, "own_net.py:fourier")
    assert "_fft_r2c" in value["warnings"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("resnet5",), "did you mean 'resnet50'"),
        (("nosuch.py:make",), "There is no file nosuch.py"),
        (("nosuchmodule:make",), "There is no module 'nosuchmodule'"),
        (("own_net.py:nosuch",), "has no 'nosuch'"),
        (("own_net.py:nothing",), "returned a NoneType"),
        (("own_net.py:fails",), "no weights here"),
        (("own_syntax.py:make",), "invalid syntax"),
        (("own_net.py:looks",), "reads the value of a tensor"),
        (("own_net.py:make", "--input", "3x9x9"), "fails on an input of shape (32, 3, 9, 9)"),
        (("own_net.py:make", "--input", "3xx9"), "write it as 3x224x224"),
        (("own_net.py:make", "--input", "0x9"), "write it as 3x224x224"),
        (("mlp", "--batch", "0"), "--batch"),
        (("mlp", "--batch", "many"), "--batch"),
        (("mlp", "--precision", "fp8"), "take one of fp32, tf32, bf16, fp16"),
        (("mlp", "--memory-format", "nhwc"), "channels_last"),
        (("mlp", "--optimizer", "lion"), "sgd, adam, adamw"),
        (("mlp", "--device", "h300"), "There is no device 'h300'"),
        (("mlp", "--device", "h300", "--flops", "1 TFLOP/s"), "there is no device 'h300'"),
        (
            ("mlp", "--device", "h200,a100", "--out", "x", "--nodes", "2"),
            "leave out --nodes, --out",
        ),
        (("mlp", "--flops", "fast"), "fast"),
        (("mlp", "--memory-bandwidth", "100"), "100"),
        (("mlp", "--model-file", "nosuch.model.safetensors"), "There is no fitted model"),
        (("mlp", "--model-file", "cut.model.safetensors"), "is cut off"),
        (("mlp", "--model-file", "mine.kernels.gz"), "no safetensors file"),
        ((), "MODEL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    here: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    more = [] if {"--model-file", "--device"} & set(arguments) else ["--model-file", _OWN_MODEL]
    assert run(*arguments, *more) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert words in err


_OWN_MODEL = "mine.model.safetensors"


def test_what_comes_with_paceline_answers_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    value = predicted(
        capsys, *("resnet50", "--device", "h200", "--batch", "256", "--precision", "bf16")
    )
    assert (value["device"], value["extrapolated"]) == ("h200", False)
    assert value["method"]["roofline"] < 0.05
    assert run("small-cnn", "--json") == 0
    assert json.loads(capsys.readouterr().out)["device"] == "h200"


def test_devices_that_nobody_measured_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    value = predicted(capsys, "small-cnn", "--device", "a100")
    assert value["extrapolated"]
    (warning,) = value["warnings"]
    assert warning.startswith("a100 was not measured: kernels are transferred from h200; such ")


CLUSTER = ("--cluster", "dgx-h200", "--nodes", "2", "--workers", "2", "--batch", "8")
MINE = ("--model-file", "mine.model.safetensors")


def test_a_cluster_under_a_strategy(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("small-cnn", *CLUSTER, "--strategy", "daso", *MINE, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["nodes"], value["workers"], value["strategy"]) == (2, 4, "daso")
    assert value["throughput_per_s"] == pytest.approx(4 * 8 / value["step_s"])
    parts = value["compute_s"] + value["exposed_communication_s"] + value["host_s"]
    assert parts == pytest.approx(value["step_s"])
    assert value["scaling_efficiency"] <= 1.0
    assert set(value["phases_s"]) == {"warm-up", "cycling"}
    assert value["phases_s"]["warm-up"] >= value["phases_s"]["cycling"]


MIXED = """
name = "mixed"
[between]
latency = "20 us"
bandwidth = "100 Gbit/s"
[[node]]
name = "fast"
workers = 2
device = "a100"
inside = { latency = "5 us", bandwidth = "100 GB/s" }
[[node]]
name = "slow"
workers = 1
device = "a100"
slowdown = 4.0
inside = { latency = "5 us", bandwidth = "100 GB/s" }
"""


def test_unequal_nodes_are_compared_in_every_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mixed.toml").write_text(MIXED)
    asked = ("mlp", "--cluster", str(tmp_path / "mixed.toml"), "--batch", "8192", "--json")
    assert run(*asked) == 0
    value = json.loads(capsys.readouterr().out)
    assert set(value) >= KEYS and value["shares"] == "equal"
    assert set(value["without"]) == {"fast", "slow"}
    assert value["without"]["fast"]["workers"] == 1
    balanced = value["balanced"]
    assert balanced["batches"]["fast"] > 8192 > balanced["batches"]["slow"]
    assert balanced["step_s"] <= value["step_s"]
    assert run(*asked, "--shares", "balanced") == 0
    assert json.loads(capsys.readouterr().out) == balanced


def test_all_strategies_side_by_side(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Exchanges so rare that local SGD is not clearly slower than DiLoCo.
    compare = ("mlp", *CLUSTER, "--compare", *MINE, "--option", "local-sgd.period=32")
    assert run(*compare) == 0
    out, err = capsys.readouterr()
    for name in ("sync", "daso", "local-sgd", "diloco"):
        assert name in out
    assert run(*compare, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    seconds = {value["strategy"]: value["step_s"] for value in said["predictions"]}
    assert len(seconds) == len(said["predictions"]) >= 7
    limit_s = 1.05 * min(seconds.values())
    close = sorted((name for name in seconds if seconds[name] <= limit_s), key=seconds.__getitem__)
    assert said["fastest"] == close
    assert f"{', '.join(close[:-1])} and {close[-1]} are within 5% of each other" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("mlp", "--compare"), "--compare needs a --cluster"),
        (("mlp", *CLUSTER, "--strategy", "dasso"), "did you mean 'daso'"),
        (("mlp", "--cluster", "no-such-cluster"), "no-such-cluster"),
        (("mlp", "--nodes", "4"), "Nodes and workers are a cluster's"),
        (("mlp", "--strategy", "dasso"), "did you mean 'daso'"),
        (("mlp", *CLUSTER, "--jitter", "inf"), "not by inf"),
        (("mlp", *CLUSTER, "--shares", "fair"), "take 'equal' or 'balanced'"),
        (("mlp", *CLUSTER, "--nodes", "1000000000"), "more than the 10,000,000"),
        (("mlp", *CLUSTER, "--samples", "9", "--epochs", "inf"), "--epochs needs"),
        (
            ("mlp", *CLUSTER, "--strategy", "daso", "--option", "daso.perid=8"),
            "did you mean 'period'",
        ),
    ],
)
def test_bad_clusters_are_one_sentence(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    assert run(*arguments, *MINE) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_figures_of_devices_hold_on_a_cluster_too(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("resnet18", "--cluster", "dgx-h200", "--nodes", "2", "--batch", "64")
    own = predicted(capsys, *common)
    slow = predicted(capsys, *common, "--flops", "1 TFLOP/s")
    assert (own["device"], slow["device"]) == ("h200", "h200*")
    # 1.8 billion multiplications and additions an image forward, and twice that backward.
    assert slow["compute_s"] > 64 * 3 * 1.8e9 * 2 / 1e12 * 0.9 > 2 * own["compute_s"]
    other = predicted(capsys, *common, "--device", "a100", "--memory-bandwidth", "1 TB/s")
    assert other["device"] == "a100*"
    assert other["memory_limit_bytes"] == 80e9


def test_a_strategy_that_cannot_train_the_model_is_left_out(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two trainable tensors, and streaming DiLoCo wants four fragments of them.
    assert run("own_net.py:make", "--input", "3x8x8", *CLUSTER, "--compare", "--json") == 0
    out, err = capsys.readouterr()
    names = {value["strategy"] for value in json.loads(out)["predictions"]}
    assert {"sync", "local-sgd", "daso"} <= names
    assert "streaming-diloco" not in names
    assert "streaming-diloco is left out: 4 fragments are more than" in err


def test_a_run_options_and_a_trace_on_the_command_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ("mlp", "--cluster", "lab-2x2", "--device", "h200", "--strategy", "daso")
    slow = predicted(capsys, *common, "--option", "daso.period=1", "--option", "daso.delay=0")
    quick = predicted(capsys, *common, "--option", "daso.period=8")
    assert slow["step_s"] > quick["step_s"]
    run_of = predicted(capsys, *common, "--samples", "1280", "--epochs", "2.5", "--jitter", "0.1")
    assert run_of["run"]["num_steps"] == 1280 * 2.5 / (32 * 4)
    assert run(*common, "--trace", "steps.json", "--samples", "64000") == 0
    assert "whole run" in capsys.readouterr().out
    assert json.loads(Path("steps.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--epochs", "2"), "--samples"),
        (("--compare", "--trace", "x.json"), "--compare"),
        (("--trace", "x.txt"), ".json"),
        (("--option", "daso.perod=3", "--strategy", "daso"), "perod"),
        (("--option", "diloco.period=3"), "diloco"),
    ],
)
def test_bad_runs_and_options_are_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], word: str
) -> None:
    assert run("mlp", "--cluster", "lab-2x2", *arguments) == 2
    told = capsys.readouterr().err
    assert word in told
    assert "Traceback" not in told
