"""A node of two workers is killed in the lab, the other goes on, and takes it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out

TRAIN = """\
import json, pathlib, sys, time
import torch
import paceline

folder = pathlib.Path(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with paceline.attach(model, optimizer, "local-sgd", period=3, survive=True) as pace:
    rank, begun = pace.workers.world.rank, pace.strategy.step
    last = folder / "last"
    while pace.strategy.step < (int(last.read_text()) if last.exists() else 1e9):
        draw = torch.Generator().manual_seed(pace.strategy.step * 10 + rank)
        x = torch.randn(8, 16, generator=draw)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()
        (folder / f"part-{rank}").write_text(f"{begun} {pace.strategy.step}")
        (folder / f"part-{rank}").rename(folder / f"step-{rank}")
        time.sleep(0.02)
    pace.finish()
    end = {"begun": begun, "weights": model.weight.tolist(), "steps": pace.strategy.step}
    (folder / f"end-{rank}").write_text(json.dumps(end))
"""


def test_a_killed_node_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("torchft")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    with Lab(lay_out(nodes=2, workers_per_node="2")) as lab:
        job = lab.start(["python", str(script), str(tmp_path)], survive=True, silence_s=2.0)
        killed_at: list[int] = []

        def steps() -> dict[int, tuple[int, ...]]:
            paths = sorted(tmp_path.glob("step-?"))
            return {int(p.name[-1]): tuple(map(int, p.read_text().split())) for p in paths}

        def look() -> None:
            now = steps()
            if len(now) < 4 or (tmp_path / "last").exists():
                return
            if not killed_at:
                if min(step for _, step in now.values()) > 6:
                    assert job.kill_node(1)
                    killed_at.append(now[0][1])
            elif job.lost != [1]:
                return
            elif now[0][1] > killed_at[0] + 12:
                job.start_node(1)
                if now[2][0] > 0 and now[3][0] > 0:
                    (tmp_path / "part").write_text(str(now[0][1] + 30))
                    (tmp_path / "part").rename(tmp_path / "last")

        assert job.wait(on_poll=look) == 0
        assert job.lost == [1]
    ends: list[dict[str, Any]] = [
        json.loads((tmp_path / f"end-{rank}").read_text()) for rank in range(4)
    ]
    assert [end["begun"] > 0 for end in ends] == [False, False, True, True]
    assert len({end["steps"] for end in ends}) == 1
    assert all(end["weights"] == ends[0]["weights"] for end in ends)
