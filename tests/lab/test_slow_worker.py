"""``--slow`` on a machine that has other things to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lab_machine import run_cli

COUNT = """\
import os, sys, time
from pathlib import Path

folder = Path(sys.argv[1])
(folder / os.environ["RANK"]).touch()
while len(list(folder.iterdir())) < 2:
    time.sleep(0.01)
end, rounds = time.monotonic() + 3.0, 0
while time.monotonic() < end:
    sum(range(10_000))
    rounds += 1
print("rounds", rounds)
"""


def test_a_slow_worker_does_less_on_a_loaded_machine(tmp_path: Path) -> None:
    script, meeting = tmp_path / "count.py", tmp_path / "meeting"
    script.write_text(COUNT)
    meeting.mkdir()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        done = run_cli(
            *("lab", "run", "--nodes", "2", "--workers", "1", "--slow", "1:0=4", "--"),
            *("python", str(script), str(meeting)),
        )
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert done.returncode == 0, done.stderr
    rounds = {line.split()[0]: int(line.split()[2]) for line in done.stdout.splitlines()}
    # Wide: what else runs here, and whom the scheduler favours after a stop, are not the lab's.
    assert 2.2 <= rounds["[node0:0]"] / rounds["[node1:0]"] <= 10.0
