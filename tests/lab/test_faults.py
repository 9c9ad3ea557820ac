"""Faults by name: read from texts, and made to happen to a job."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab_machine import run_cli
from paceline.lab.faults import Fault, parse_fault, parse_faults
from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out

# Counts, and tells whether its disk is full.
PROGRAM = """\
import os, pathlib, sys, time

folder, disk = map(pathlib.Path, sys.argv[1:])
own = os.environ["GROUP_RANK"]
for number in range(10**9):
    try:
        (disk / f"new-{own}").write_bytes(bytes(100_000))
        (disk / f"new-{own}").unlink()
        is_full = False
    except OSError as problem:
        is_full = "space" in str(problem)
    (folder / f"part-{own}").write_text(f"{number} {'full' if is_full else 'free'}")
    (folder / f"part-{own}").rename(folder / f"told-{own}")
    time.sleep(0.02)
"""


class Watcher:
    """Injects one fault after the other, each when the effect of the one before was seen."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.words: list[str] = []
        self.seen: list[str] = []
        self.stage = 0
        self.count = 0
        self.job: Any = None

    def told(self, node: int) -> tuple[int, str]:
        path = self.folder / f"told-{node}"
        number, disk = path.read_text().split() if path.exists() else ("-1", "none")
        return int(number), disk

    def inject(self, text: str) -> None:
        fault = replace(parse_fault(text, self.lab.cluster), at_s=self.job.elapsed_s)
        self.lab.inject(self.job, [fault], on_fault=self.words.append)
        self.stage += 1

    def port(self) -> str:
        switch = next(path.name for path in Path("/var/run/netns").glob(f"{self.lab._name}-switch"))
        show = ["ip", "netns", "exec", switch, "cat", "/sys/class/net/port1/operstate"]
        return subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()

    def look(self) -> None:
        number, disk = self.told(1)
        if self.stage == 0 and number > 3 and self.told(0)[0] > 3:
            self.inject(f"fill {self.folder / 'disk'} at 0s for 3s")
        elif self.stage == 1 and disk == "full" and self.told(0)[1] == "full":
            self.stage += 1
        elif self.stage == 2 and disk == "free":
            self.inject("stop 1:0 at 0s for 0.5s")
        elif self.stage == 3 and "worker 1:0 goes on" in self.words:
            self.count = number
            self.stage += 1
        elif self.stage == 4 and number > self.count + 3:
            self.inject("link 1 down at 0s")
        elif self.stage == 5 and len(self.words) == 5:
            self.seen.append(self.port())
            self.lab.connect(1, is_up=True)
            self.seen.append(self.port())
            self.inject("kill 1:0 at 0s")


def test_faults_happen_to_a_job(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    disk = tmp_path / "disk"
    with Lab(lay_out(nodes=2, workers_per_node="1")) as lab:
        watcher = Watcher(lab, tmp_path)
        watcher.job = lab.start(["python", str(script), str(tmp_path), str(disk)], disk=disk)
        assert watcher.job.wait(on_poll=watcher.look) == 137
        failure = watcher.job.first_failure()
    assert failure is not None
    assert (failure.node, failure.worker, failure.code) == (1, 0, 137)
    assert watcher.words == [
        f"the disk {disk} is full",
        f"the disk {disk} has room again",
        "worker 1:0 is stopped",
        "worker 1:0 goes on",
        "the link of node 1 is down",
        "worker 1:0 is killed",
    ]
    assert watcher.seen == ["down", "up"]
    assert list(disk.iterdir()) == []  # the machine's own disk was never touched


def test_faults_are_read() -> None:
    layout = lay_out()
    assert parse_fault("kill 1:0 at 30s", layout) == Fault(kind="kill", at_s=30, node=1, worker=0)
    assert parse_fault("kill 1 at 60 s", layout) == Fault(kind="kill", at_s=60, node=1)
    assert parse_fault("start 1 at 90s", layout) == Fault(kind="start", at_s=90, node=1)
    assert parse_fault("link 0 down at 5s for 10s", layout) == Fault(
        kind="link", at_s=5, for_s=10, node=0
    )
    assert parse_fault("link 1 = 1mbit at 5s", layout) == Fault(
        kind="link", at_s=5, node=1, rate_bytes_per_s=125_000
    )
    assert parse_fault("stop 0:1 at 500ms for 20s", layout) == Fault(
        kind="stop", at_s=0.5, for_s=20, node=0, worker=1
    )
    filled = parse_fault("fill /tmp/some where=16MiB at 5s for 2s", layout)
    assert (filled.folder, filled.size_bytes) == (Path("/tmp/some where"), 16 << 20)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kill 1:0", "does not say when; end it with a time, as in 'at 30s'"),
        ("kill 1:0 at noon", "noon"),
        ("explode 1 at 3s", "is not understood; write 'kill 1:0 at 30s'"),
        ("kill at 3s", "is not understood"),
        ("kill 1:0 at 3s for 2s", "kill has no duration"),
        ("stop 1:0 at 3s", "does not say for how long"),
        ("stop 1 at 3s for 2s", "is not understood"),
        ("link 1 at 3s", "is not understood"),
        ("link 1=fast at 3s", "fast"),
        ("link 1=40gbit at 3s", "up to 10 Gbit/s"),
        ("kill 2 at 3s", "names a node or worker that is not there"),
        ("kill 1:2 at 3s", "names a node or worker that is not there"),
        ("fill /x=2TB at 3s", "between 1 MiB and 1 GiB"),
        ("", "does not say when"),
    ],
)
def test_faults_that_make_no_sense(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_fault(text, lay_out())


def test_faults_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one disk can be full in a job"):
        parse_faults(["fill /a at 1s", "fill /b at 1s"], lay_out())
    (tmp_path / "precious").touch()
    with Lab(lay_out(nodes=1)) as lab:
        fill = parse_fault(f"fill {tmp_path} at 1s", lab.cluster)
        with pytest.raises(ValueError, match="give a new or empty folder"):
            lab.start(["python", "-c", ""], faults=[fill])
        again = parse_fault("start 0 at 1s", lab.cluster)
        with pytest.raises(ValueError, match="only where the others go on: use --survive"):
            lab.start(["python", "-c", ""], faults=[again])
    with Lab(lay_out(nodes=1), emulation="software") as lab:
        down = parse_fault("link 0 down at 1s", lab.cluster)
        with pytest.raises(ValueError, match="needs the kernel"):
            lab.start(["python", "-c", ""], faults=[down])


def test_the_command_refuses_a_bad_fault() -> None:
    done = run_cli("lab", "run", "--fault", "explode at 3s", "--", "python", "-c", "")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: --fault 'explode at 3s' is not understood; write ")
