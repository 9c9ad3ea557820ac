from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.race.traffic import bytes_sent_from_node
from paceline.teams.emulated import ENVIRONMENT_VARIABLE, link_of_node


def test_counts_what_the_interface_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    # The kernel has the same count in another place.
    counter = Path("/sys/class/net/lo/statistics/tx_bytes")
    before, counted, after = counter.read_text(), bytes_sent_from_node(0), counter.read_text()
    assert counted is not None
    assert int(before) <= counted <= int(after)


def test_an_interface_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothing0")
    with pytest.raises(ValueError, match="no network interface 'nothing0'"):
        bytes_sent_from_node(0)


def test_the_interface_is_the_one_that_leads_to_the_first_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    counter = Path("/sys/class/net/lo/statistics/tx_bytes")
    before, counted, after = counter.read_text(), bytes_sent_from_node(0), counter.read_text()
    assert counted is not None
    assert int(before) <= counted <= int(after)
    monkeypatch.delenv("MASTER_ADDR")
    assert bytes_sent_from_node(0) is None


def test_counts_what_an_emulated_link_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = {"folder": str(tmp_path), "rates_bytes_per_s": [1e9, 1e9]}
    environment = {ENVIRONMENT_VARIABLE: json.dumps(settings)}
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, environment[ENVIRONMENT_VARIABLE])
    link = link_of_node(environment, 1)
    assert link is not None
    link.reserve(3000)
    link.reserve(500)
    assert bytes_sent_from_node(1) == 3500
    assert bytes_sent_from_node(0) == 0
