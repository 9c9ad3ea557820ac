"""Every code block of the documentation runs here, or says what it needs."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from docs.pages import ROOT, Block, all_blocks, blocks_of, page_names
from paceline.cli import main

LANGUAGES = {"python", "console", "toml", "text"}  # text: output and drawings

BLOCKS = all_blocks()
TESTED_PAGES = [
    page
    for page in page_names()
    if any(block.needs is None and block.language != "text" for block in blocks_of(page))
]
COMMANDS = [
    pytest.param(command, id=f"{block.place}-{index}")
    for block in BLOCKS
    for index, command in enumerate(block.commands())
    if block.language == "console"
]


@pytest.fixture(scope="module")
def runner() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name("page_run.py"))]
    path = os.pathsep.join(str(Path(folder).resolve()) for folder in sys.path if folder)
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("page", TESTED_PAGES)
def test_blocks_run(page: str, runner: subprocess.Popen[str], tmp_path: Path) -> None:
    assert runner.stdin is not None and runner.stdout is not None
    runner.stdin.write(f"{page}\t{tmp_path}\n")
    runner.stdin.flush()
    code = runner.stdout.readline().strip()
    output = (tmp_path / "output.txt").read_text(encoding="utf-8")
    assert code == "0", f"{page}\n{output[-4000:]}"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_language_is_known(block: Block) -> None:
    assert block.language in LANGUAGES


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_understood(command: str) -> None:
    """Also where the suite lacks the hardware: options and scripts that do not exist are found."""
    words = shlex.split(command, comments=True)
    for word in words:
        if re.fullmatch(r"(examples|benchmarks|tests)/\S+", word):
            assert (ROOT / word).exists()
    while "paceline" in words:
        words = words[words.index("paceline") + 1 :]
        _check_arguments(words)


def _check_arguments(words: list[str]) -> None:
    command: Any = typer.main.get_command(main.app)
    name = "paceline"
    while words and (name := words[0]) in getattr(command, "commands", {}):
        command, words = command.commands[name], words[1:]
    command.make_context(name, list(words), resilient_parsing="--version" in words)


@pytest.mark.parametrize(
    "block",
    [block for block in BLOCKS if block.language == "python" and block.needs is not None],
    ids=lambda block: block.place,
)
def test_skipped_python_is_python(block: Block) -> None:
    ast.parse(block.code)
