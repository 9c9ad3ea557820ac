from __future__ import annotations

import json

import pytest

from lab_machine import run_cli


@pytest.mark.parametrize("emulation", ["namespaces", "software"])
def test_links_run_at_the_rate_asked_for(emulation: str) -> None:
    done = run_cli(
        "lab", "check", "--nodes", "2", "--link", "100mbit", "--emulation", emulation, "--json"
    )
    said = json.loads(done.stdout)
    assert said["emulation"] == emulation
    assert [(link["source"], link["target"]) for link in said["links"]] == [(0, 1), (1, 0)]
    for link in said["links"]:
        assert link["asked_bytes_per_s"] == 12.5e6
        # The promise is 7 %, on a machine that has nothing else to do.
        assert link["measured_bytes_per_s"] == pytest.approx(12.5e6, rel=0.15)
        assert link["deviation"] == pytest.approx(link["measured_bytes_per_s"] / 12.5e6 - 1)
    is_within = all(abs(link["deviation"]) <= said["tolerance"] for link in said["links"])
    assert done.returncode == (0 if is_within else 1)
