"""``paceline device``, and one step predicted on several devices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.cli import frame, main
from paceline.cluster import cheapest_price, device_names


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert frame.run(main.app, [*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_device_is_listed_and_says_what_predictions_for_it_are_worth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    devices = {each["name"]: each for each in ask(capsys, "device", "list")["devices"]}
    assert set(devices) == set(device_names())
    assert devices["h200"]["predictions"] == "measured"
    assert devices["l40s"]["predictions"] == "transferred"
    assert devices["mi300x"]["predictions"] == "never compared"
    for name, device in devices.items():
        if name != "cpu-core":
            facts = ("multiprocessors", "clock_ghz", "l2_bytes", "products_share", "architecture")
            assert all(device[fact] for fact in (*facts, "facts_source", "source")), name
    assert ask(capsys, "device", "show", "l40s") == devices["l40s"]
    assert frame.run(main.app, ["device", "list"]) == 0
    assert frame.run(main.app, ["device", "show", "b200"]) == 0
    assert "71% of the peak" in capsys.readouterr().out


def test_an_unknown_device_is_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.run(main.app, ["device", "show", "l40ss"]) == 2
    assert "did you mean 'l40s'" in capsys.readouterr().err
    assert frame.run(main.app, ["predict", "mlp", "--device", "a100,l40ss"]) == 2
    assert "did you mean 'l40s'" in capsys.readouterr().err
    assert frame.run(main.app, ["predict", "mlp", "--device", "a100,l4", "--cluster", "local"]) == 2
    assert "leave out --cluster" in capsys.readouterr().err


def test_six_devices_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["a100", "h100", "l40s", "v100", "rtx4090", "mi300x"]
    asked = ("predict", "resnet18", "--batch", "256", "--device", ",".join(names))
    found = ask(capsys, *asked)
    assert [each["device"] for each in found["predictions"]] == names
    by_dollars = {
        each["device"]: each["dollars_per_million_samples"]
        for each in found["predictions"]
        if each["price_per_hour"] is not None
    }
    for each in found["predictions"]:
        price = cheapest_price(each["device"])
        if price is not None:
            seconds = 1e6 / each["throughput_per_s"]
            expected = price.per_hour * seconds / 3600
            assert by_dollars[each["device"]] == pytest.approx(expected)
        assert any("was not measured" in warning for warning in each["warnings"])
        assert each["uncertainty"] >= 0.09
    assert found["cheapest"] == min(by_dollars, key=lambda name: by_dollars[name])
    assert frame.run(main.app, list(asked)) == 0
    printed = capsys.readouterr()
    assert f"cheapest: {found['cheapest']}" in printed.out
    for each in found["predictions"]:
        limits = [line for line in printed.out.splitlines() if line.startswith("limited by ")]
        assert sum(each["device"] in line for line in limits) == 1
    best = by_dollars[found["cheapest"]]
    doubts = {each["device"]: each["uncertainty"] for each in found["predictions"]}
    most = best * (1 + doubts[found["cheapest"]])
    rivals = [
        name
        for name, dollars in by_dollars.items()
        if name != found["cheapest"] and dollars * (1 - doubts[name]) < most
    ]
    assert (f"as cheap: {', '.join(rivals)}" in printed.out) == bool(rivals)
    assert "never compared" in printed.err
