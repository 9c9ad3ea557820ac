"""Links whose rate changes while a job runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab_machine import run_cli
from paceline.lab.lab import Lab
from paceline.lab.layout import lay_out
from paceline.lab.timetable import LabEvent, LinkChange, Timetable, parse_changes

# Measures the link from node 0 to node 1, tells it, and again when it is told that it may. The best
# of several: a busy machine can only make a link seem slower.
MEASURE = """\
import pathlib, sys, time
from paceline.lab.probe import measure_link
from paceline.teams import find_workers

across = find_workers().across
folder = pathlib.Path(sys.argv[1])
for name in sys.argv[2:]:
    while name == "after" and not (folder / "changed").exists():
        time.sleep(0.02)
    rate = max(across.agree(measure_link(across, 0, 1, 100_000), "max") for _ in range(4))
    if across.rank == 0:
        (folder / "part").write_text(str(rate))
        (folder / "part").rename(folder / name)
"""


def test_a_lab_changes_a_rate_under_way(tmp_path: Path) -> None:
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    with Lab(lay_out(nodes=2, workers_per_node="1", link="200mbit")) as lab:

        def look() -> None:
            if (tmp_path / "before").exists() and not (tmp_path / "changed").exists():
                # What node 1 receives is shaped too.
                lab.set_rate(5e6, node=1)
                (tmp_path / "changed").touch()

        job = lab.start(["python", str(script), str(tmp_path), "before", "after"])
        assert job.wait(on_poll=look) == 0
        with pytest.raises(ValueError, match="no node 2; nodes 0 to 1"):
            lab.set_rate(5e6, node=2)
        with pytest.raises(ValueError, match="must be more than 0"):
            lab.set_rate(0.0)
    assert float((tmp_path / "before").read_text()) == pytest.approx(25e6, rel=0.3)
    assert float((tmp_path / "after").read_text()) == pytest.approx(5e6, rel=0.15)


def test_the_command_changes_software_links(tmp_path: Path) -> None:
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    done = run_cli(
        *("lab", "run", "--nodes", "2", "--workers", "1", "--link", "200mbit"),
        # Before python is up, whatever the machine is doing.
        *("--change", "link=40mbit at 0s", "--emulation", "software", "--json"),
        *("--", "python", str(script), str(tmp_path), "from-the-start"),
    )
    assert done.returncode == 0, done.stderr
    assert "lab: all links at 40 Mbit/s from now on" in done.stderr
    change = {"at_s": 0.0, "node": None, "rate_bytes_per_s": 5e6}
    assert json.loads(done.stdout)["changes"] == [change]
    assert float((tmp_path / "from-the-start").read_text()) == pytest.approx(5e6, rel=0.15)


def test_events_happen_once_each_in_their_order() -> None:
    happened: list[str] = []
    late = LabEvent(at_s=3600.0, act=lambda: happened.append("late"))
    second = LabEvent(at_s=0.0, act=lambda: happened.append("second"))
    first = LabEvent(at_s=-1.0, act=lambda: happened.append("first"))
    timetable = Timetable([late, second, first])
    timetable.act_on_due()
    timetable.act_on_due()
    assert happened == ["first", "second"]


def test_changes_are_read() -> None:
    assert parse_changes(["link=50mbit at 20s", "link 1 = 12.5 MB/s at 500 ms"], lay_out()) == [
        LinkChange(at_s=20.0, node=None, rate_bytes_per_s=6.25e6),
        LinkChange(at_s=0.5, node=1, rate_bytes_per_s=12.5e6),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("link=50mbit", "does not say when; end it with a time, as in 'at 20s'"),
        ("link=50mbit at noon", "noon"),
        ("50mbit at 20s", "write 'link=50mbit at 20s'"),
        ("link 1:0=50mbit at 20s", "write 'link=50mbit at 20s'"),
        ("link=fast at 20s", "fast"),
        ("link=0mbit at 20s", "0mbit"),
        ("link 2=50mbit at 20s", "names a node that is not there; .* there are 2"),
        ("link=40gbit at 20s", "up to 10 Gbit/s, and this is 40 Gbit/s"),
    ],
)
def test_changes_that_make_no_sense(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_changes([text], lay_out())
