"""Every code block of the documentation runs here, or says what it needs."""

from __future__ import annotations

import ast
import multiprocessing
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from docs.page_run import run_page
from docs.pages import ROOT, Block, all_blocks, blocks_of, page_names
from paceline.cli import main

LANGUAGES = {"python", "console", "toml", "text"}  # text: output and drawings
RUN_S = 120

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

# Torch is imported once, and each page's process is a copy of the one that did.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch", "paceline.rehearse", "paceline.train", "docs.page_run"])


@pytest.mark.parametrize("page", TESTED_PAGES)
def test_blocks_run(page: str, tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.needs is None]
    process = PROCESSES.Process(target=run_page, args=(blocks, tmp_path))
    process.start()
    process.join(RUN_S)
    if process.is_alive():
        process.kill()
    output = (tmp_path / "output.txt").read_text(encoding="utf-8")
    assert process.exitcode == 0, f"{page}\n{output[-4000:]}"


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
