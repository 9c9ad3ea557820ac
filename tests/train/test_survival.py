"""A node is lost while others train, and comes back: real processes, killed for real."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline
from jobs import run_launched
from paceline.teams.meeting import MeetingServer, MeetingSettings

os.environ.setdefault("RUST_LOG", "error")
pytest.importorskip("torchft")

NUM_NODES, PERIOD, DEATH_STEP = 3, 4, 11
LR, MOMENTUM = 0.05, 0.9


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def loss_of(model: torch.nn.Module, step: int, node: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * step + node)
    x = torch.randn(8, 8, generator=draw)
    return torch.nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))


def train_node(folder: Path, node: int, strategy: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train until told; a node dies in its first life if it is told to."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    life = len(list(folder.glob(f"life-{node}-*")))
    (folder / f"life-{node}-{life}").touch()
    with paceline.attach(model, optimizer, strategy, survive=True, **options) as pace:
        begun, absent = pace.strategy.step, []
        if (folder / "saves").exists():
            assert pace.load(folder / "saves", missing_ok=True) is None
        if life == 1:
            (folder / "back").write_text(str(begun))
        while pace.strategy.step < last_step(folder):
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(model, pace.strategy.step, node))
            optimizer.step()
            step = pace.strategy.step
            if (folder / "saves").exists():
                pace.save(folder / "saves", background=True)
                absent.append(absent_from(folder / "saves"))
            if (folder / f"die-{node}").exists() and step == DEATH_STEP:
                (folder / "dead").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if node == 0 and (folder / "back").exists() and not (folder / "last").exists():
                (folder / "part").write_text(str(step + 3 * PERIOD + 2))
                (folder / "part").rename(folder / "last")
            if (folder / "slowly").exists():
                time.sleep(0.02)
        pace.finish()
        state = pace.state_dict()["state"]
        return {
            "begun": begun,
            "steps": pace.strategy.step,
            "parameters": [p.detach().clone() for p in model.parameters()],
            "outers": state["outers"],
            "absent": absent,
        }


def absent_from(saves: Path) -> list[int]:
    """Whose parts the last save lacks; of the first node's saves, which nobody has removed yet."""
    if os.environ["PACELINE_NODE"] != "0":
        return []
    newest = max(saves.glob("save-*/complete.json"))
    absent: list[int] = json.loads(newest.read_text())["absent"]
    return absent


def load_at_last(folder: Path, average: bool) -> str | list[torch.Tensor]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    with paceline.attach(model, optimizer, "local-sgd", survive=True, period=PERIOD) as pace:
        try:
            pace.load(folder / "saves", average=average)
        except paceline.CheckpointError as error:
            return str(error)
        return [p.detach().clone() for p in model.parameters()]


def last_step(folder: Path) -> int:
    try:
        return int((folder / "last").read_text())
    except FileNotFoundError:
        return 1 << 30


def start_again(folder: Path, strategy: str, options: dict[str, Any]) -> dict[str, Any]:
    """Node 2's second life: begins when the first one is over, as a scheduler would see to."""
    while not (folder / "dead").exists():
        time.sleep(0.05)
    return train_node(folder, 2, strategy, options)


def as_told(folder: Path, strategy: str, options: dict[str, Any]) -> dict[str, Any]:
    node = int(os.environ["PACELINE_NODE"])
    if os.environ.get("PACELINE_TEST_LIFE") == "2":
        return start_again(folder, strategy, options)
    return train_node(folder, node, strategy, options)


def variables_of(meeting: str, node: int, life: int = 1) -> dict[str, str]:
    return {
        "PACELINE_MEETING": meeting,
        "PACELINE_NODE": str(node),
        "PACELINE_TEST_LIFE": str(life),
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    }


def run_nodes(
    folder: Path,
    strategy: str,
    options: dict[str, Any],
    *,
    comes_back: bool,
    silence_s: float = 2.0,
) -> list[dict[str, Any]]:
    (folder / "die-2").touch()
    settings = MeetingSettings(num_nodes=NUM_NODES, silence_s=silence_s, timeout_s=120.0)
    with MeetingServer(settings) as server:
        lives = [(node, 1) for node in range(NUM_NODES)] + [(2, 2)] * comes_back
        return run_launched(
            as_told,
            folder,
            strategy,
            options,
            environments=[variables_of(server.address, *life) for life in lives],
            dying=[2],
        )


def reference(num_steps: int) -> list[torch.Tensor]:
    """Local SGD of three nodes, then of two, in one process and without paceline."""
    made = []
    for _ in range(NUM_NODES):
        model = make_model()
        made.append((model, torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)))
    for step in range(num_steps):
        for node, (model, optimizer) in enumerate(made):
            optimizer.zero_grad()
            torch.autograd.backward(loss_of(model, step, node))
            optimizer.step()
        if step + 1 == DEATH_STEP:
            made.pop()
        if (step + 1) % PERIOD == 0 or step + 1 == num_steps:
            with torch.no_grad():
                for each in zip(*(list(model.parameters()) for model, _ in made), strict=True):
                    mean = torch.stack(list(each)).mean(0)
                    for parameter in each:
                        parameter.copy_(mean)
    return list(made[0][0].parameters())


def test_the_others_go_on_as_a_smaller_job(tmp_path: Path) -> None:
    (tmp_path / "last").write_text("30")
    options = {"period": PERIOD}
    # On a busy machine, a node that lives must not be taken for a lost one.
    ends = run_nodes(tmp_path, "local-sgd", options, comes_back=False, silence_s=5.0)[:2]
    expected = reference(30)
    for end in ends:
        assert end["steps"] == 30
        for own, right in zip(end["parameters"], expected, strict=True):
            torch.testing.assert_close(own, right, rtol=1e-4, atol=1e-6)
    assert all(
        torch.equal(a, b) for a, b in zip(ends[0]["parameters"], ends[1]["parameters"], strict=True)
    )


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("daso", {"period": PERIOD, "warmup_steps": 2}),
        ("streaming-diloco", {"period": 2 * PERIOD, "fragments": 2}),
    ],
)
def test_a_lost_node_comes_back_with_the_others_state(
    tmp_path: Path, strategy: str, options: dict[str, Any]
) -> None:
    (tmp_path / "slowly").touch()
    first, second, _, returned = run_nodes(tmp_path, strategy, options, comes_back=True)
    assert first["begun"] == second["begun"] == 0
    assert returned["begun"] > DEATH_STEP
    assert first["steps"] == second["steps"] == returned["steps"]
    for end in (second, returned):
        for own, right in zip(end["parameters"], first["parameters"], strict=True):
            assert torch.equal(own, right)
        for own, right in zip(end["outers"], first["outers"], strict=True):
            for a, b in zip(own, right, strict=True):
                assert torch.equal(a["anchor"], b["anchor"])
                assert torch.equal(a["velocity"], b["velocity"])


def test_checkpoints_are_saved_while_a_node_is_lost(tmp_path: Path) -> None:
    (tmp_path / "slowly").touch()
    (tmp_path / "saves").mkdir()
    first, *_ = run_nodes(tmp_path, "local-sgd", {"period": PERIOD}, comes_back=True)
    assert first["absent"][0] == first["absent"][-1] == []
    assert [2] in first["absent"]


def test_a_checkpoint_without_a_lost_nodes_part_is_loaded_as_an_average(tmp_path: Path) -> None:
    (tmp_path / "last").write_text("30")
    (tmp_path / "saves").mkdir()
    options = {"period": PERIOD}
    run_nodes(tmp_path, "local-sgd", options, comes_back=False, silence_s=5.0)
    for average in (False, True):
        settings = MeetingSettings(num_nodes=NUM_NODES, silence_s=5.0, timeout_s=120.0)
        with MeetingServer(settings) as server:
            variables = [variables_of(server.address, node) for node in range(NUM_NODES)]
            found = run_launched(load_at_last, tmp_path, average, environments=variables)
        if average:
            assert all(map(torch.equal, found[0], found[2]))
        else:
            assert "was saved while the workers [2] were lost" in found[2]


def small() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("strategy", "options", "sentence"),
    [
        ("sync", {}, "Sync needs all nodes at every step"),
        ("post-local-sgd", {}, "PostLocalSgd needs all nodes"),
        ("daso", {"wire": "bf16"}, "survive=True needs wire='fp32'"),
        ("daso", {"collective": "tree"}, "does not go together with collective='tree'"),
        ("daso", {}, "start 'paceline meet'"),
    ],
)
def test_what_cannot_survive_is_refused(
    strategy: str, options: dict[str, Any], sentence: str
) -> None:
    model, optimizer = small()
    with pytest.raises(ValueError, match=sentence):
        paceline.attach(model, optimizer, strategy, survive=True, **options)


def test_a_meeting_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="num_nodes=0 must be at least 1"):
        MeetingSettings(num_nodes=0)
    with pytest.raises(ValueError, match="no longer than timeout_s=5"):
        MeetingSettings(num_nodes=2, silence_s=10.0, timeout_s=5.0)
