"""The same commands with links emulated in software, as without root or on macOS."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lab_machine import run_cli
from paceline.teams.emulated import EmulatedLink

# 10 MB/s, and 3 workers on 2 nodes.
RATE_BYTES_PER_S = 10e6
NUM_BYTES = 3_000_000

REDUCE = f"""\
import json, os, time
import torch
import torch.distributed as dist
from paceline.race.traffic import bytes_sent_from_node
from paceline.teams import find_workers

workers = find_workers()
inside = torch.ones({NUM_BYTES // 4})
workers.node.all_reduce(inside).wait()
sent_inside = bytes_sent_from_node(workers.node_index)
tensor = torch.full(({NUM_BYTES // 4},), workers.world.rank + 1.0)
dist.barrier()
start = time.monotonic()
pending = workers.world.all_reduce(tensor)
done_at_once = pending.done()
pending.wait()
end = time.monotonic()
told = {{"sums": tensor.unique().tolist(), "start": start, "end": end}}
told |= {{"done_at_once": done_at_once}}
told |= {{"done": pending.done(), "lab": os.environ["PACELINE_LAB"], "sent_inside": sent_inside}}
dist.barrier()
told |= {{"sent": bytes_sent_from_node(workers.node_index)}}
print(json.dumps(told))
dist.destroy_process_group()
"""


def test_a_software_lab_paces_and_counts(tmp_path: Path) -> None:
    script = tmp_path / "reduce.py"
    script.write_text(REDUCE)
    done = run_cli(
        *("lab", "run", "--emulation", "software", "--workers", "2,1", "--link", "10 MB/s"),
        *("--json", "--", "python", str(script)),
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["emulation"], said["exit_code"]) == ("software", 0)
    first, *lines = done.stderr.splitlines()
    assert first.startswith("lab: links emulated in software")
    workers = {}
    for line in lines:
        match = re.fullmatch(r"\[node(\d:\d)\] (\{.*\})", line)
        assert match is not None, line
        workers[match[1]] = json.loads(match[2])
    assert sorted(workers) == ["0:0", "0:1", "1:0"]
    # What a ring of three sends out of each node: 2 (P - 1) / P of the bytes.
    out_of_node = 2 * 2 / 3 * NUM_BYTES
    # The links work from the first worker's call on; the last may come while they do.
    start = min(told["start"] for told in workers.values())
    for told in workers.values():
        assert told["lab"] == "software"
        assert told["sums"] == [6.0]
        assert told["sent_inside"] == 0
        assert told["sent"] == out_of_node
        assert not told["done_at_once"]
        assert told["done"]
        assert told["end"] - start >= out_of_node / RATE_BYTES_PER_S


def test_a_link_is_a_queue(tmp_path: Path) -> None:
    link = EmulatedLink(tmp_path / "link", rate_bytes_per_s=1000.0)
    assert link.bytes_sent() == 0
    first, second = link.reserve(500), link.reserve(250)
    # The second waits for the first: a quarter of a second after it, not after now.
    assert second - first == pytest.approx(0.25)
    assert EmulatedLink(tmp_path / "link", rate_bytes_per_s=1000.0).bytes_sent() == 750
