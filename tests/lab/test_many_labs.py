"""Twelve labs, two at a time, one of each pair killed with SIGKILL at some moment of its life."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lab_machine import NAMESPACES, interfaces, namespaces_of, processes_with
from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out
from paceline.lab.owner import is_orphan

NUM_PAIRS = 6
# Long enough for a lab to start, to build its network, to be up, and to be about to leave.
LONGEST_LIFE_S = 1.8

# All of a lab but torch: its folder, its network, and a process in each of its namespaces.
LAB = """\
import os, subprocess, sys, tempfile, time
from pathlib import Path
from paceline.lab.lab import sweep
from paceline.lab.network import Network
from paceline.lab.owner import new_lab_name
from paceline.lab.processes import ENVIRONMENT_VARIABLE

sweep()
name = new_lab_name()
Path(tempfile.gettempdir(), name).mkdir()
with Network(name, [1e7, 1e7]) as network:
    for namespace in network.namespaces:
        enter = [sys.executable, "-m", "paceline.lab.enter", str(os.getpid()), namespace]
        # A process that does not care about SIGTERM, and one that left its parent.
        script = 'trap "" TERM; setsid sleep 63 & while :; do sleep 63; done'
        subprocess.Popen(
            [*enter, "sh", "-c", script, sys.argv[1]],
            env={**os.environ, ENVIRONMENT_VARIABLE: name},
        )
    time.sleep(0.4)
Path(tempfile.gettempdir(), name).rmdir()
"""


def test_nothing_is_left_after_many_labs_and_some_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random(2)
    before = interfaces()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pids = []
    for _ in range(NUM_PAIRS):
        lasting, killed = (
            subprocess.Popen([sys.executable, "-c", LAB, str(tmp_path)], env=environment)
            for _ in range(2)
        )
        pids += [lasting.pid, killed.pid]
        time.sleep(choose.uniform(0.1, LONGEST_LIFE_S))
        killed.kill()
        killed.wait()
        # Neither the other's death nor the sweeping of it disturbs this one.
        assert lasting.wait(timeout=60) == 0
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Lab(lay_out(nodes=2, workers_per_node="1")):
        assert namespaces_of(*pids) == []
        assert [path.name for path in NAMESPACES.iterdir() if is_orphan(path.name)] == []
        assert processes_with(str(tmp_path)) == []
    assert interfaces() == before
    assert list(tmp_path.iterdir()) == []
