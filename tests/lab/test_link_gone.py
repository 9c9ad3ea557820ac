"""A node's link goes for good: the workers say so, and end."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from lab_machine import Start, namespaces_of, wait_until

TIMEOUT_S = 8.0
TRAIN = f"""\
import pathlib, sys
import torch
import paceline

model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with paceline.attach(model, optimizer, sys.argv[1], timeout={TIMEOUT_S}) as pace:
    for step in range(100_000):
        optimizer.zero_grad()
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        if step == 30:
            pathlib.Path(sys.argv[2], str(pace.workers.world.rank)).touch()
"""


def test_a_link_that_is_gone_for_good_is_named(start: Start, tmp_path: Path) -> None:
    script, ready = tmp_path / "train.py", tmp_path / "ready"
    script.write_text(TRAIN)
    ready.mkdir()
    lab = start(
        *("lab", "run", "--nodes", "2", "--workers", "1", "--"),
        *("python", str(script), "daso", str(ready)),
    )
    wait_until(lambda: len(list(ready.iterdir())) == 2, timeout_s=60)
    switch = next(name for name in namespaces_of(lab.process.pid) if name.endswith("-switch"))
    begun_s = time.monotonic()
    cut = ["ip", "netns", "exec", switch, "ip", "link", "set", "port1", "down"]
    subprocess.run(cut, check=True)
    _, err = lab.process.communicate(timeout=90)
    took_s = time.monotonic() - begun_s
    assert lab.process.returncode != 0
    # Each node names the other: node 1 has lost the store as well.
    first = r"\[node0:0\] paceline: worker 0 on node 0 \(.*\) has waited \d+ s in .* not there: "
    assert re.search(first + r"worker 1 on node 1 \(.*\) \(no sign of life for \d+ s\)", err), err
    second = r"\[node1:0\] paceline: worker 1 on node 1 \(.*\) has waited \d+ s in .*; "
    assert re.search(second + r"the first node, node 0 \(.*\), cannot be reached", err), err
    assert re.search(r"TeamError: worker \d on .* failed at step \d+: ", err), err
    assert f"timed out after {TIMEOUT_S:.0f} s" in err
    assert took_s < 80.0, err  # 157 s without a timeout of our own, and no load makes that less
