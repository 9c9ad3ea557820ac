"""The host of a node: by name, by speed, unknown; and what it does to a prediction."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.cli.frame import run
from paceline.cli.main import app
from paceline.cluster import dump_cluster, host_names, load_cluster, load_host, parse_cluster
from paceline.rehearse import predict
from paceline.steps import zoo_step

TEXT = """
name = "one"
[[node]]
workers = 1
device = "h200"
host = HOST
[node.inside]
latency = "1 us"
bandwidth = "450 GB/s"
[node.between]
latency = "7 us"
bandwidth = "400 Gbit/s"
"""


def test_a_host_is_a_name_or_a_speed() -> None:
    for written, speed in (('"xeon-8480"', 2.3), ("1.5", 1.5), ("2", 2.0)):
        cluster = parse_cluster(TEXT.replace("HOST", written), "one.toml")
        assert load_host(cluster.node_kinds[0].host).speed == speed
        assert parse_cluster(dump_cluster(cluster), "again") == cluster
    with pytest.raises(ValueError, match=r"host = 'xeon-8490': there is no host 'xeon-8490': did"):
        parse_cluster(TEXT.replace("HOST", '"xeon-8490"'), "one.toml")
    with pytest.raises(ValueError, match="host has to be a host's name such as 'xeon-8480', or"):
        parse_cluster(TEXT.replace("HOST", "-1"), "one.toml")
    assert all(load_host(name).source for name in host_names())


def test_a_step_that_the_host_limits_follows_its_speed_and_says_what_helps() -> None:
    step = zoo_step("mlp", batch=2)
    clusters = {
        written: parse_cluster(TEXT.replace("HOST", written), "one.toml")
        for written in ("1.0", "2.0", '"xeon-8480"')
    }
    unknown = load_cluster("dgx-h200").with_nodes(1).with_workers_per_node(1)
    found = {name: predict(step, cluster=cluster) for name, cluster in clusters.items()}
    found["unknown"] = predict(step, cluster=unknown)
    assert found["1.0"].bottleneck == "host"
    assert found["1.0"].step_s == pytest.approx(2 * found["2.0"].step_s)
    assert found["unknown"].step_s == pytest.approx(found["1.0"].step_s)
    # Who does not know the host is less sure than who read its name, or measured it.
    doubts = [found[name].uncertainty for name in ("2.0", '"xeon-8480"', "unknown")]
    assert doubts == sorted(doubts)
    assert doubts[2] > 0.3 > 0.2 > doubts[0]
    helps = "A larger batch, torch.compile or CUDA graphs help"
    assert all(any(helps in each for each in one.notes) for one in found.values())
    assert any("paceline measure host" in each for each in found["unknown"].notes)
    assert not any("paceline measure host" in each for each in found["2.0"].notes)
    busy = predict(zoo_step("vgg16", batch=64), cluster=unknown)
    assert busy.bottleneck != "host"
    assert not busy.notes


def test_eight_workers_wait_for_their_hosts_too() -> None:
    step = zoo_step("mlp", batch=2)
    base = load_cluster("dgx-h200").with_nodes(1)
    fast = base.replace(node_kinds=(base.node_kinds[0].replace(host=2.0),))
    slow_s, fast_s = (predict(step, cluster=each).compute_s for each in (base, fast))
    assert slow_s == fast_s  # the device's part
    assert predict(step, cluster=fast).step_s < 0.8 * predict(step, cluster=base).step_s


def test_measure_host_compares_this_processor(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["measure", "host", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0.1 < found["speed"] < 20
    assert found["nearest"] in host_names()
    assert load_host(found["speed"]).speed == found["speed"]


def test_price_and_host_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["predict", "mlp", "--batch", "2", "--cluster", "dgx-h200", "--nodes", "1", "--json"]

    def found(*more: str) -> dict[str, Any]:
        assert run(app, [*common, *more]) == 0
        return dict(json.loads(capsys.readouterr().out))

    run_of = ("--samples", "100000")
    assert found(*run_of)["run"]["dollars"] is None
    priced = found(*run_of, "--price", "10")["run"]
    assert priced["dollars"] == pytest.approx(priced["seconds"] / 360)
    slow, fast, named = (found("--host", host)["host_issue_s"] for host in ("1", "2", "xeon-8480"))
    assert (slow / fast, slow / named) == pytest.approx((2, 2.3))
    assert run(app, ["predict", "mlp", "--price", "10"]) == 2
    assert "give a --cluster" in capsys.readouterr().err
    assert run(app, [*common, "--host", "xeon-1"]) == 2
    assert "there is no host" in capsys.readouterr().err
