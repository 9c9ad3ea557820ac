"""Nothing listens beyond the loopback unless it is asked to."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import subprocess
import sys
import time
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


@pytest.mark.skipif(sys.platform != "linux", reason="looks into other processes")
@pytest.mark.parametrize(
    "words",
    [
        "meet --nodes 2 --listen 127.0.0.1:0",
        "explore mlp --no-browser --port 0",
        "race --strategies torchft-diloco --nodes 2 --workers 1 --epochs 1 --model mlp "
        "--no-predict --emulation software",
    ],
)
def test_a_command_is_on_the_loopback(words: str, tmp_path: Path) -> None:
    """Seen from outside while it runs: a race ends by itself, the others are ended."""
    if "explore" not in words:
        pytest.importorskip("torchft")
    started = subprocess.Popen(
        [sys.executable, "-m", "paceline", *words.split()],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    heard: set[str] = set()
    enough = 1 if words.startswith("explore") else 2
    try:
        own = psutil.Process(started.pid)
        deadline_s = time.monotonic() + 120.0
        while started.poll() is None and time.monotonic() < deadline_s:
            num_listening = 0
            with contextlib.suppress(psutil.Error):
                for each in (own, *own.children(recursive=True)):
                    for connection in each.net_connections("inet"):
                        if connection.status == psutil.CONN_LISTEN:
                            heard.add(connection.laddr.ip)
                            num_listening += 1
            if num_listening >= enough and not words.startswith("race"):
                break
            time.sleep(0.1)
    finally:
        if started.poll() is None:
            started.terminate()
        code = started.wait()
    assert not words.startswith("race") or code == 0
    assert heard
    assert all(ipaddress.ip_address(each).is_loopback for each in heard)
