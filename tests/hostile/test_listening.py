"""Nothing listens beyond the loopback unless it is asked to."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from paceline.studies.explorer.server import LOOPBACK

WORKER = """
import json, os, sys
import psutil, torch
import paceline

model = torch.nn.Linear(2, 2)
pace = paceline.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "daso")
model(torch.ones(1, 2)).sum().backward()
own = psutil.Process()
seen = [own, *own.parents()]
lab = next(each for each in reversed(seen) if each.pid == int(sys.argv[2]))
heard = [
    (each.name(), connection.laddr.ip)
    for each in (lab, *lab.children(recursive=True))
    for connection in each.net_connections("inet")
    if connection.status == psutil.CONN_LISTEN
]
if os.environ["RANK"] == "0":
    open(sys.argv[1], "w").write(json.dumps(heard))
pace.finish()
"""


def test_the_explorer_is_on_the_loopback() -> None:
    assert ipaddress.ip_address(LOOPBACK).is_loopback


@pytest.mark.skipif(sys.platform != "linux", reason="looks into other processes")
def test_a_lab_without_namespaces_is_on_the_loopback(tmp_path: Path) -> None:
    script, out = tmp_path / "worker.py", tmp_path / "heard.json"
    script.write_text(WORKER)
    # The lab in a process of its own, so that its whole tree can be looked at.
    code = (
        "import os, sys\n"
        "from paceline.cli import frame\n"
        "from paceline.cli.main import app\n"
        "words = 'lab run --emulation software --nodes 2 --workers 1 --'.split()\n"
        f"sys.exit(frame.run(app, [*words, sys.executable, {str(script)!r}, {str(out)!r}, "
        "str(os.getpid())]))\n"
    )
    before = set(psutil.Process().children(recursive=True))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    heard = json.loads(out.read_text())
    assert heard, "the job's store listens somewhere"
    beyond = [each for each in heard if not ipaddress.ip_address(each[1]).is_loopback]
    assert beyond == []
    # Other tests of this process may have left theirs.
    assert set(psutil.Process().children(recursive=True)) <= before
