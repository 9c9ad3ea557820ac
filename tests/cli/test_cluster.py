from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cli import cluster, frame
from paceline.cluster import load_cluster, preset_names

GOOD = """\
name = "room"
[between]
latency = "20 us"
bandwidth = "10 Gbit/s"
[[node]]
count = 3
workers = 2
device = "t4"
[node.inside]
latency = "5 us"
bandwidth = "16 GB/s"
"""

BAD = [
    ('name = "room"', "name = ", "not valid TOML"),
    ("workers", "worker", "node[0].worker is not a known key: did you mean 'workers'"),
    ("workers = 2\n", "", "node[0].workers is missing"),
    ("16 GB/s", "-16 GB/s", "node[0].inside.bandwidth"),
    ("10 Gbit/s", "100 Mb", "write '100 Mbit/s' for bits or '100 MB/s' for bytes"),
    ('device = "t4"\n', "", "node[0].device is missing"),
    ('"t4"', '"t3"', "did you mean 't4'"),
    ("workers = 2", "workers = 0", "a whole number of at least 1, not 0"),
    ("workers = 2", "workers = 'two'", "a whole number of at least 1, not 'two'"),
]


def run(*arguments: str) -> int:
    return frame.run(cluster.app, list(arguments))


def one_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("Error: ")
    assert "Traceback" not in err
    return err


def test_list_has_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == list(
        preset_names()
    )
    (p5,) = [line.split() for line in lines if line.startswith("aws-p5 ")]
    assert p5 == ["aws-p5", "4", "32", "h100", "450", "GB/s", "3200", "Gbit/s", "220.16"]


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["clusters"]
    assert [entry["name"] for entry in listed] == list(preset_names())


@pytest.mark.parametrize("name", preset_names())
def test_show_names_figures_and_sources(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert run("show", name) == 0
    words = capsys.readouterr().out.split()
    for node in load_cluster(name).node_kinds:
        assert node.name in words
        assert node.device.name in words
        assert set(node.source.split()) <= set(words)


def test_show_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "mixed", "--json") == 0
    assert json.loads(capsys.readouterr().out) == load_cluster("mixed").to_dict()


def test_show_does_not_take_names_for_markup(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "room.toml"
    file.write_text(GOOD.replace('"room"', '"[bold]room[/nothing]"'), "utf-8")
    assert run("show", str(file)) == 0
    assert "[bold]room[/nothing]" in capsys.readouterr().out


def test_check_prints_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "room.toml"
    file.write_text(GOOD, "utf-8")
    assert run("check", str(file)) == 0
    assert capsys.readouterr().out == (
        f"{file} is a valid cluster: 3 nodes, 6 workers, t4, price unknown\n"
    )
    assert run("check", str(file), "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["valid"] is True
    assert answer["cluster"]["num_workers"] == 6


@pytest.mark.parametrize(("old", "new", "sentence"), BAD)
@pytest.mark.parametrize("command", ["check", "show"])
def test_a_bad_file_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
    old: str,
    new: str,
    sentence: str,
) -> None:
    assert old in GOOD
    file = tmp_path / "room.toml"
    file.write_text(GOOD.replace(old, new, 1), "utf-8")
    assert run(command, str(file)) == 2
    said = one_sentence(capsys)
    assert str(file) in said
    assert sentence in said


def test_missing_files_and_unknown_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("check", str(tmp_path / "none.toml")) == 2
    assert "there is no such file" in one_sentence(capsys)
    assert run("show", "aws-p6") == 2
    assert "did you mean 'aws-p5'" in one_sentence(capsys)
    assert run("check") == 2
    assert "FILE" in one_sentence(capsys)


@pytest.mark.parametrize("command", ["list", "show", "check"])
def test_help_has_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert run(command, "--help") == 0
    assert f"$ paceline cluster {command}" in capsys.readouterr().out
