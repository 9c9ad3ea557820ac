"""The explorer's answers against predictions of their own, and its server as a stranger sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.cluster import load_cluster
from paceline.rehearse import Prediction, predict
from paceline.steps import Step, zoo_step
from paceline.studies.explorer import Explorer, tested
from paceline.studies.explorer.question import Question
from paceline.studies.explorer.server import ExplorerServer

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence" / "index.md"
PATIENCE_S = 120


@pytest.fixture(scope="module")
def step() -> Step:
    return zoo_step("mlp", batch=32)


@pytest.fixture(scope="module")
def expected(step: Step) -> dict[str, Prediction]:
    """What is predicted one by one; before the explorer starts, since captures take turns."""
    own = load_cluster("lab-2x2")
    kind = own.node_kinds[0]
    faster = kind.between.replace(bandwidth_bytes_per_s=4 * kind.between.bandwidth_bytes_per_s)
    quick = own.replace(node_kinds=(kind.replace(between=faster),))
    return {
        "sync": predict(step, cluster=own),
        "daso": predict(step, cluster=own, strategy="daso"),
        "sync on 16 nodes": predict(step, cluster=own, nodes=16),
        "daso on 16 nodes": predict(step, cluster=own, strategy="daso", nodes=16),
        "four times the link": predict(step, cluster=quick),
        "twice the batch": predict(zoo_step("mlp", batch=64), cluster=own),
        "h200": predict(step, cluster=own, device="h200"),
    }


@pytest.fixture(scope="module")
def explorer(step: Step, expected: dict[str, Prediction]) -> Iterator[Explorer]:
    found = Explorer(step, cluster="lab-2x2", strategies=("sync", "daso"), workers="1:64")
    found.start()
    yield found
    found.close()


@pytest.fixture(scope="module")
def server(explorer: Explorer) -> Iterator[ExplorerServer]:
    with ExplorerServer(explorer) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield listening
        listening.shutdown()


def settled(explorer: Explorer, question: Question) -> dict[str, Any]:
    """The answer when nothing in it is estimated any more."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = explorer.answer(question)
        if found.get("is_settled"):
            return found
        time.sleep(0.05)
    raise AssertionError("not settled")


def moved(explorer: Explorer, question: Question, **places: int) -> Question:
    """The question with some sliders elsewhere."""
    at = settled(explorer, question)["sliders"]
    query = {**at, **places, "cluster": question.cluster, "strategy": question.strategy}
    return Question.from_query({name: str(value) for name, value in query.items()})


def curve(found: dict[str, Any], strategy: str) -> dict[int, float]:
    """Throughput by number of workers."""
    (line,) = [
        trace
        for trace in found["figures"]["throughput"]["data"]
        if trace.get("name") == strategy and "fill" not in trace
    ]
    return dict(zip(line["x"].tolist(), line["y"].tolist(), strict=True))


@pytest.mark.parametrize("strategy", ["sync", "daso"])
def test_the_first_answer_is_the_prediction(
    explorer: Explorer, expected: dict[str, Prediction], strategy: str
) -> None:
    found = settled(explorer, replace(explorer.first_question, strategy=strategy))
    own, many = expected[strategy], expected[f"{strategy} on 16 nodes"]
    assert curve(found, strategy)[4] == pytest.approx(own.throughput_per_s, rel=1e-6)
    assert curve(found, strategy)[32] == pytest.approx(many.throughput_per_s, rel=1e-6)
    name, value, beside = found["numbers"][0]
    assert name == "time per step"
    assert value == f"{float(f'{own.step_s * 1e3:.3g}'):.4g} ms"
    low, high = (float(f"{seconds * 1e3:.3g}") for seconds in own.range_s)
    assert beside == f"{low:.4g} ms to {high:.4g} ms"


def test_every_slider_changes_what_it_should(
    explorer: Explorer, expected: dict[str, Prediction]
) -> None:
    first = explorer.first_question
    at = settled(explorer, first)["sliders"]
    # Four places further is four times: the factor between two is the square root of two.
    found = settled(explorer, moved(explorer, first, link=at["link"] + 4))
    wanted = expected["four times the link"].throughput_per_s
    assert curve(found, "sync")[4] == pytest.approx(wanted, rel=1e-6)
    found = settled(explorer, moved(explorer, first, batch=at["batch"] + 1))
    wanted = expected["twice the batch"].throughput_per_s
    assert curve(found, "sync")[4] == pytest.approx(wanted, rel=1e-6)
    base = settled(explorer, first)
    for name in ("arithmetic", "memory_bandwidth"):
        slower = settled(explorer, moved(explorer, first, **{name: 0}))
        assert curve(slower, "sync")[1] < curve(base, "sync")[1]
    elsewhere = settled(explorer, moved(explorer, first, workers=0))
    assert elsewhere["numbers"] != base["numbers"]
    assert curve(elsewhere, "sync") == curve(base, "sync")


def test_another_device_is_prepared_and_then_answered(
    explorer: Explorer, expected: dict[str, Prediction]
) -> None:
    question = replace(explorer.first_question, device="h200")
    assert explorer.answer(question)["state"] in ("preparing", "ready")
    found = settled(explorer, question)
    assert found["device"] == "h200"
    wanted = expected["h200"].throughput_per_s
    assert curve(found, "sync")[4] == pytest.approx(wanted, rel=1e-6)
    assert any("h200, which was measured" in text for text in found["tested"])


def test_a_batch_that_the_model_cannot_run_on_is_told() -> None:
    """Normalising a batch of one sample fails, and nothing else does."""
    step = Step(
        model=nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)),
        inputs=torch.empty(8, 16),
        loss=lambda output, _: output.sum(),
    )
    found = Explorer(step, cluster="lab-2x2", strategies=("sync",), workers="1:8")
    found.start()
    try:
        one = moved(found, found.first_question, batch=0)
        end = time.monotonic() + PATIENCE_S
        while (answer := found.answer(one))["state"] != "failed":
            assert time.monotonic() < end, answer
            time.sleep(0.05)
        assert "batch 1: " in answer["status"]
        assert settled(found, found.first_question)["state"] == "ready"
    finally:
        found.close()


def test_tested_errors_are_those_of_the_evidence() -> None:
    table = EVIDENCE.read_text("utf-8")
    for name in (
        "MEASURED_DEVICE",
        "HOST_LIMITED",
        "CPU_DEVICE",
        "CARRIED_DEVICE",
        "LAB_STEPS",
        "PUBLISHED_SCALING",
        "OTHER_PUBLISHED_SCALING",
    ):
        assert f"| {getattr(tested, name)} |" in table, f"{name} is not what docs/evidence says"


@pytest.mark.parametrize(
    "query",
    [
        {"cluster": "nosuch"},
        {"device": "nosuch"},
        {"strategy": "nosuch"},
        {"workers": "1"},
        {"batch": "-1", "arithmetic": "0", "memory_bandwidth": "0", "link": "0", "workers": "0"},
        {"batch": "99", "arithmetic": "0", "memory_bandwidth": "0", "link": "0", "workers": "0"},
    ],
)
def test_a_question_that_is_none(explorer: Explorer, query: dict[str, str]) -> None:
    whole = {"cluster": "lab-2x2", "device": "", "strategy": "sync", **query}
    with pytest.raises(ValueError):
        explorer.answer(Question.from_query(whole))


def test_the_server_answers_its_own_page_alone(server: ExplorerServer) -> None:
    assert server.server_address[0] == "127.0.0.1"

    def ask(path: str, *, method: str = "GET", host: str | None = None) -> tuple[int, str, str]:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE_S)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"localhost:{server.server_port}")
        connection.endheaders()
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, reply.getheader("Content-Type") or "", text

    assert ask("/")[0] == 200
    status, kind, text = ask("/answer?cluster=lab-2x2&strategy=sync")
    assert (status, kind) == (200, "application/json; charset=utf-8")
    assert json.loads(text)["state"] == "ready"
    refused = [
        ask("/answer?cluster=lab-2x2&strategy=sync", host="rebound.example"),
        ask("/", host=f"rebound.example:{server.server_port}"),
        ask("/../../../../etc/passwd"),
        ask("/%2e%2e/%2e%2e/etc/passwd"),
        ask("/explorer.py"),
        ask("/answer?cluster=<script>"),
        ask(f"/answer?cluster={'x' * 3000}"),
        ask("/answer", method="POST"),
        ask("/answer", method="DELETE"),
    ]
    assert [status for status, _, _ in refused] == [403, 403, 404, 404, 404, 400, 400, 501, 501]
    for _, kind, text in refused:
        assert kind.startswith("application/json")
        assert list(json.loads(text)) == ["error"]
        assert "script" not in text and "root:" not in text


def test_a_port_that_is_taken_is_told(explorer: Explorer, server: ExplorerServer) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        ExplorerServer(explorer, server.server_port)


def test_the_command_tells_its_address_and_ends_with_ctrl_c() -> None:
    command = [sys.executable, "-m", "paceline", "explore", "mlp", "--cluster", "lab-2x2"]
    with subprocess.Popen(
        [*command, "--strategy", "sync", "--workers", "1:8", "--no-browser", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # A test run that a shell put into the background ignores Ctrl-C; the command should not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        connection = HTTPConnection(found["url"].split("/")[2], timeout=PATIENCE_S)
        connection.request("GET", "/")
        assert "<title>mlp: explore</title>" in connection.getresponse().read().decode()
        connection.close()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "", "")
