"""What a process still does that ends quickly, seen from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """\
import atexit, gc, sys
from paceline.ending import end_quickly

# Called in the reverse order: this one comes after what end_quickly asked for.
atexit.register(lambda: print("frozen:", gc.get_freeze_count() > 1000))
end_quickly()
kept_open = open(sys.argv[1], "w")
kept_open.write("written")
print("not flushed", end=", ")
sys.exit(3)
"""


def test_nothing_is_lost_and_no_garbage_is_looked_for(tmp_path: Path) -> None:
    target = tmp_path / "kept_open.txt"
    command = [sys.executable, "-c", SCRIPT, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == "not flushed, frozen: True\n"
    assert target.read_text() == "written"
