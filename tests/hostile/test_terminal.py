"""What names, paths and errors say is shown on the terminal, and never obeyed."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from unicodedata import category

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from paceline.cli import frame
from paceline.cli.main import app
from paceline.cli.race_view import race_table
from paceline.cli.terminal import Screen
from paceline.reading import visible

EVIL = (
    "[red]n[/red] [link=http://x]y[/link] :smile: \x1b[2J\x1b]0;t\x07 \u202e \x9b31m \r\x08 [/] é😀"
)
SHOWN = r"[red]n[/red] [link=http://x]y[/link] :smile: \x1b[2J\x1b]0;t"
TOML = r"[red]n[/red] [link=http://x]y[/link] :smile: \u001b[2J\u001b]0;t\u0007 \u202e [/]"
CLUSTER = f"""
name = "{TOML}"
description = "{TOML}"
[device."{TOML}"]
memory = "80 GB"
memory_bandwidth = "2 TB/s"
flops = {{ fp32 = "19.5 TFLOP/s" }}
source = "{TOML}"
[between]
latency = "5 us"
bandwidth = "10 Gbit/s"
source = "{TOML}"
[[node]]
name = "{TOML}"
count = 2
workers = 2
device = "{TOML}"
inside = {{ latency = "5 us", bandwidth = "25 GB/s" }}
source = "{TOML}"
"""
# What rich itself writes for colours, and to draw a bar anew.
STYLE = re.compile(r"\x1b\[([0-9;]*m|\?25[lh]|1A|2K)|\r")


def is_harmless(text: str) -> bool:
    plain = STYLE.sub("", text)
    return all(each.isprintable() or each == "\n" or category(each) == "Zs" for each in plain)


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if standard output had colours and links."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "400")


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "[red]c\x1b[31m.toml"
    path.write_text(CLUSTER)
    return path


def test_what_cannot_be_seen_is_spelt_out() -> None:
    assert visible("plain ä 😀\n\ttext\u00a0") == "plain ä 😀\n\ttext\u00a0"
    assert visible("\x1b[31m\x07\u202e\x9b\0\udcff\u2028") == (
        r"\x1b[31m\x07\u202e\x9b\x00\udcff\u2028"
    )
    assert is_harmless(visible("".join(map(chr, range(0x3000))).replace("\t", "")))


@pytest.mark.usefixtures("on_terminal")
def test_a_screen_obeys_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    assert screen.is_terminal
    table = Table("a", EVIL, title=EVIL, caption=EVIL)
    table.add_row(EVIL, Text(EVIL))
    for what in (EVIL, Text(EVIL), table, race_table([], title=EVIL, target=0.5)):
        screen.print(what)
    with Progress(TextColumn("{task.description}", markup=False), console=screen) as bar:
        bar.add_task(EVIL, total=1)
    written = capsys.readouterr().out
    assert SHOWN in STYLE.sub("", written)
    assert is_harmless(written)


@pytest.mark.usefixtures("on_terminal")
@pytest.mark.parametrize(
    "line",
    [
        "cluster show FILE",
        "cluster check FILE",
        "predict mlp --cluster FILE --trace FILE.json",
        "study mlp --cluster FILE --workers 1:2 --batch 8 --strategy sync",
        "advise mlp --cluster FILE --nodes 2 --strategy sync",
    ],
)
def test_names_of_a_cluster_are_shown(
    line: str, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("FILE", str(cluster)) for word in line.split()]
    assert frame.run(app, words) == 0
    written = capsys.readouterr()
    assert is_harmless(written.out)
    assert is_harmless(written.err)
    assert r"\x1b" in written.out + written.err


@pytest.mark.usefixtures("on_terminal")
@pytest.mark.parametrize(
    "words",
    [
        ["cluster", "show", EVIL],
        ["cluster", "check", f"/{EVIL}"],
        ["predict", EVIL],
        ["predict", f"{EVIL}:make"],
        ["predict", f"{EVIL}.py:make"],
        ["predict", "mlp", "--strategy", EVIL],
        ["predict", "mlp", "--device", EVIL],
        ["predict", "mlp", "--option", EVIL],
        ["predict", "mlp", "--input", EVIL, "--batch", EVIL],
        ["predict", "mlp", f"--{EVIL}"],
        ["predict", "mlp", "--model-file", EVIL],
        ["predict", "mlp", "--trace", EVIL],
        ["race", "--strategies", EVIL],
        ["lab", "run", "--link", EVIL, "--", "true"],
        ["trace", "compare", f"{EVIL}.json", f"{EVIL}.json"],
        ["fit", EVIL],
        [EVIL],
    ],
)
def test_errors_are_shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.run(app, words) == frame.BAD_INPUT
    written = capsys.readouterr().err
    assert written.startswith("Error: ")
    assert written.count("\n") == 1
    assert is_harmless(written)
    assert "\x1b" not in written


def test_a_users_exception_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("def make():\n    raise RuntimeError('[red]\\x1b[31m')\n")
    assert frame.run(app, ["predict", f"{tmp_path / 'mine.py'}:make"]) == frame.BAD_INPUT
    assert r"fails: RuntimeError: [red]\x1b[31m" in capsys.readouterr().err


def test_a_value_of_megabytes_is_quoted_in_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.run(app, ["predict", "A" * 1_000_000]) == frame.BAD_INPUT
    assert len(capsys.readouterr().err) < 3000


def test_nobody_reads_the_rest() -> None:
    # As with `| head -1`: no traceback, no complaint.
    with subprocess.Popen(
        [sys.executable, "-m", "paceline", "cluster", "list", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()
        # typer ends with 1 where the pipe breaks inside a command.
        assert process.wait(timeout=120) in (1, frame.NOBODY_READS)
    assert told == b""


def test_a_narrow_terminal_and_an_old_encoding(cluster: Path) -> None:
    screen = subprocess.run(
        [sys.executable, "-m", "paceline", "cluster", "show", str(cluster)],
        env={"COLUMNS": "20", "PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert screen.returncode == 0, screen.stderr
    assert is_harmless(io.TextIOWrapper(io.BytesIO(screen.stdout), "ascii").read())
