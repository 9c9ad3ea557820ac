"""``paceline race``: real training through the command, on labs and in a job of torchrun."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab_machine import run_cli
from paceline.zoo import build_model

NUM_TRAIN_EXAMPLES = 1437
# Fast to start and to measure.
SMALL = ("--workers", "1", "--epochs", "1", "--batch", "64")
PROMISED = {
    "name",
    "step_s",
    "prediction",
    "waiting_share",
    "bytes_between_nodes",
    "accuracy",
    "time_to_target_s",
}


def model_bytes() -> int:
    return sum(weight.numel() * 4 for weight in build_model("small-cnn").parameters())


def ring_bytes(num_workers: int, num_nodes: int, num_steps: int) -> float:
    """What all nodes send: a ring through all workers leaves each node once."""
    return 2 * (num_workers - 1) / num_workers * model_bytes() * num_steps * num_nodes


def in_ms(cell: str) -> float:
    """The number of a cell such as ``12.3 ms``."""
    return float(cell.removesuffix(" ms"))


def race(*arguments: str) -> dict[str, Any]:
    done = run_cli("race", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("race") / "not" / "yet" / "there"


@pytest.fixture(scope="session")
def outcome(folder: Path) -> dict[str, Any]:
    """DDP against the floor on two nodes of one worker, at 100 Mbit/s, with predictions."""
    return race("--strategies", "ddp,floor", *SMALL, "--out", str(folder))


def test_the_object_has_the_promised_shape(outcome: dict[str, Any]) -> None:
    assert outcome["emulation"] == "namespaces"
    assert outcome["cluster"]["workers_per_node"] == [1, 1]
    assert [result["name"] for result in outcome["results"]] == ["ddp", "floor"]
    for result in outcome["results"]:
        assert set(result) >= PROMISED
        assert result["step_s"] > 0
        assert 0 <= result["waiting_share"] <= 1
        assert 0 <= result["accuracy"] <= 1
        # One epoch does not reach the target, and that is no number.
        assert result["time_to_target_s"] is None
        assert result["num_steps"] == NUM_TRAIN_EXAMPLES // (64 * 2)
        assert result["accuracy_times_s"] == [pytest.approx(result["training_s"])]


def test_ddp_sends_what_a_ring_sends_and_the_floor_nothing(outcome: dict[str, Any]) -> None:
    ddp, floor = outcome["results"]
    expected = ring_bytes(num_workers=2, num_nodes=2, num_steps=ddp["num_steps"])
    # Headers, acknowledgements and barriers come on top.
    assert expected <= ddp["bytes_between_nodes"] <= 1.15 * expected
    assert floor["bytes_between_nodes"] < 0.01 * expected


def test_the_network_is_what_ddp_waits_for(outcome: dict[str, Any]) -> None:
    ddp, floor = outcome["results"]
    assert ddp["step_s"] > floor["step_s"]
    assert ddp["waiting_share"] > floor["waiting_share"]
    # No step can be faster than its bytes.
    out_of_node = ring_bytes(num_workers=2, num_nodes=1, num_steps=1)
    assert ddp["step_s"] >= 0.95 * out_of_node / 12.5e6


def test_the_links_are_measured_and_the_steps_predicted_from_them(outcome: dict[str, Any]) -> None:
    (node,) = outcome["measured_cluster"]["nodes"]
    assert outcome["measured_cluster"]["workers_per_node"] == [1, 1]
    # The lab's rate is known; a busy machine may not reach it.
    assert 6e6 < node["between"]["bandwidth_bytes_per_s"] < 15e6
    for result in outcome["results"]:
        expected = result["prediction"]
        assert expected["low_s"] <= expected["step_s"] <= expected["high_s"]
        parts_s = expected["compute_s"] + expected["exposed_communication_s"]
        assert parts_s == pytest.approx(expected["step_s"])
    ddp, floor = (result["prediction"] for result in outcome["results"])
    # DDP's bytes over the measured link, at least, and no link for the floor.
    out_of_node = ring_bytes(num_workers=2, num_nodes=1, num_steps=1)
    assert ddp["step_s"] >= 0.9 * out_of_node / node["between"]["bandwidth_bytes_per_s"]
    assert floor["exposed_communication_s"] == pytest.approx(0.0, abs=1e-9)


def test_results_report_and_logs_are_kept(outcome: dict[str, Any], folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["race.json", "race.log", "report.html"]
    assert outcome["report"] == str(folder / "report.html")
    told = json.loads((folder / "race.json").read_text())
    assert told == {key: value for key, value in outcome.items() if key != "report"}


def test_the_report_holds_the_races_figures(outcome: dict[str, Any], folder: Path) -> None:
    html = (folder / "report.html").read_text("utf-8")
    data = re.search(r'<script[^>]* id="data"[^>]*>(.*?)</script>', html, re.DOTALL)
    assert data is not None
    tables = {
        section["name"]: list(csv.DictReader(io.StringIO(section["csv"])))
        for section in json.loads(data[1])
    }
    steps = {row["strategy"]: row for row in tables["predicted-against-measured"]}
    sent = {row["strategy"]: row for row in tables["bytes-between-nodes"]}
    reached = {row["strategy"]: row for row in tables["accuracy-over-time"]}
    for result in outcome["results"]:
        name, expected = result["name"], result["prediction"]
        assert float(steps[name]["measured_step_s"]) == result["step_s"]
        assert float(steps[name]["predicted_step_s"]) == expected["step_s"]
        assert float(steps[name]["high_s"]) == expected["high_s"]
        assert int(sent[name]["bytes_between_nodes"]) == result["bytes_between_nodes"]
        assert float(reached[name]["accuracy"]) == result["accuracy"]
        assert float(reached[name]["training_s"]) == result["training_s"]


@pytest.fixture(scope="session")
def again(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """DDP once more, on other links: faster ones, emulated in software."""
    return race(
        *("--strategies", "ddp", "--emulation", "software", "--link", "1gbit", "--no-predict"),
        *(*SMALL, "--out", str(tmp_path_factory.mktemp("again"))),
    )


def test_the_same_seed_gives_the_same_model_whatever_the_link(
    outcome: dict[str, Any], again: dict[str, Any]
) -> None:
    first, second = outcome["results"][0], again["results"][0]
    assert first["accuracies"] == second["accuracies"]
    assert first["final_loss"] == second["final_loss"]


def test_a_race_on_software_links_says_so_and_counts_exactly(again: dict[str, Any]) -> None:
    assert again["emulation"] == "software"
    assert again["measured_cluster"] is None
    (ddp,) = again["results"]
    assert ddp["prediction"] is None
    assert ddp["bytes_between_nodes"] == ring_bytes(2, 2, ddp["num_steps"])
    # A step takes at least as long as its bytes on the link.
    assert ddp["step_s"] >= ring_bytes(2, 1, 1) / 125e6


def test_a_race_in_a_job_of_torchrun(tmp_path: Path) -> None:
    out = tmp_path / "race"
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    options = ("--strategies=ddp", "--model=mlp", "--epochs=1", f"--out={out}")
    done = subprocess.run(
        [*torchrun, "-m", "paceline", "race", *options],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((out / "race.json").read_text())
    assert told["emulation"] is None
    assert told["cluster"]["workers_per_node"] == [2]
    assert told["measured_cluster"] == told["cluster"]
    assert told["settings"]["model"] == "mlp"
    # The first worker alone prints, what it has written.
    rows = [line.strip("│ ").split("│") for line in done.stdout.splitlines() if "│" in line]
    cells = {name.strip(): [cell.strip() for cell in others] for name, *others in rows}
    assert list(cells) == ["ddp"] and len(rows) == 1
    for result in told["results"]:
        predicted, measured, _, sent, accuracy, reached = cells[result["name"]]
        assert in_ms(predicted) == pytest.approx(result["prediction"]["step_s"] * 1e3, abs=0.5)
        assert in_ms(measured) == pytest.approx(result["step_s"] * 1e3, abs=0.5)
        assert sent == "0.0 MB"  # there is one node
        assert accuracy == f"{result['accuracy']:.1%}"
        assert reached == "–"
        # 1437 // (32 * 2) steps, in which a perceptron learns the digits well.
        assert result["num_steps"] == 22
        assert result["accuracy"] > 0.5
    assert done.stdout.splitlines()[-1] == f"Report: {out / 'report.html'}"
    assert (out / "report.html").stat().st_size > 1e6
