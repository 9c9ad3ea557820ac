"""Nothing but a lab's network namespaces needs /proc, which only Linux has."""

from __future__ import annotations

import re
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

import paceline
from paceline.measure import contention, kernels
from paceline.teams import host

NOWHERE = Path("/nowhere/proc")
# Network namespaces are Linux's own; the others fall back, as is tested below.
READERS = {
    *("lab/namespaces.py", "lab/enter.py"),
    *("teams/host.py", "measure/kernels.py", "doctor/facts.py"),
}


def test_only_files_with_a_fallback_read_proc() -> None:
    package = Path(paceline.__file__).parent
    readers = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"""["']/proc/""", path.read_text("utf-8"))
    }
    assert readers == READERS


def test_a_machine_has_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_BOOT_ID", NOWHERE)
    monkeypatch.setattr(host, "_PID_NAMESPACE", NOWHERE)
    monkeypatch.setattr(psutil, "boot_time", lambda: pytest.fail("it moves with the clock"))
    assert host.machine() == host.machine()
    assert host.process_table() == host.machine()


def test_cores_are_busy_where_interrupts_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    times = namedtuple("times", "user nice system idle")
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(3.0, 0.5, 1.0, 99.0))
    assert contention._busy_s() == 4.5


def test_a_processor_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_CPU_INFO", NOWHERE)
    assert kernels.cpu_model()
