"""``paceline race``: real training on a real lab, through the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab_machine import run_cli
from paceline.zoo import build_model

NUM_TRAIN_EXAMPLES = 1437
PROMISED = {
    "name",
    "step_s",
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


def race(*arguments: str) -> dict[str, Any]:
    done = run_cli("race", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("race") / "not" / "yet" / "there"


@pytest.fixture(scope="module")
def outcome(folder: Path) -> dict[str, Any]:
    """DDP against the floor on the default lab, 2x2 at 100 Mbit/s."""
    return race("--strategies", "ddp,floor", "--epochs", "1", "--out", str(folder))


def test_the_object_has_the_promised_shape(outcome: dict[str, Any]) -> None:
    assert outcome["emulation"] == "namespaces"
    assert outcome["cluster"]["workers_per_node"] == [2, 2]
    assert [result["name"] for result in outcome["results"]] == ["ddp", "floor"]
    for result in outcome["results"]:
        assert set(result) >= PROMISED
        assert result["step_s"] > 0
        assert 0 <= result["waiting_share"] <= 1
        assert 0 <= result["accuracy"] <= 1
        # One epoch does not reach the target, and that is no number.
        assert result["time_to_target_s"] is None
        assert result["num_steps"] == NUM_TRAIN_EXAMPLES // (32 * 4)


def test_ddp_sends_what_a_ring_sends_and_the_floor_nothing(outcome: dict[str, Any]) -> None:
    ddp, floor = outcome["results"]
    expected = ring_bytes(num_workers=4, num_nodes=2, num_steps=ddp["num_steps"])
    # Headers, acknowledgements and barriers come on top.
    assert expected <= ddp["bytes_between_nodes"] <= 1.15 * expected
    assert floor["bytes_between_nodes"] < 0.01 * expected


def test_the_network_is_what_ddp_waits_for(outcome: dict[str, Any]) -> None:
    ddp, floor = outcome["results"]
    assert ddp["step_s"] >= 2 * floor["step_s"]
    assert ddp["waiting_share"] > floor["waiting_share"]
    # No step can be faster than its bytes.
    out_of_node = ring_bytes(num_workers=4, num_nodes=1, num_steps=1)
    assert ddp["step_s"] >= 0.95 * out_of_node / 12.5e6


def test_results_and_logs_are_kept(outcome: dict[str, Any], folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["ddp.log", "floor.log", "race.json"]
    assert json.loads((folder / "race.json").read_text()) == outcome


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """DDP once more, on other links: faster ones, emulated in software."""
    return race(
        *("--strategies", "ddp", "--emulation", "software", "--link", "1gbit"),
        *("--epochs", "1", "--out", str(tmp_path_factory.mktemp("again"))),
    )


def test_the_same_seed_gives_the_same_model_whatever_the_link(
    outcome: dict[str, Any], again: dict[str, Any]
) -> None:
    first, second = outcome["results"][0], again["results"][0]
    assert first["accuracies"] == second["accuracies"]
    assert first["final_loss"] == second["final_loss"]


def test_a_race_on_software_links_says_so_and_counts_exactly(again: dict[str, Any]) -> None:
    assert again["emulation"] == "software"
    (ddp,) = again["results"]
    assert ddp["bytes_between_nodes"] == ring_bytes(4, 2, ddp["num_steps"])
    # A step takes at least as long as its bytes on the link.
    assert ddp["step_s"] >= ring_bytes(4, 1, 1) / 125e6
