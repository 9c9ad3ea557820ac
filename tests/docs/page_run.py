"""Run a page's blocks in order, as a reader would: one folder, one Python session.

As a program, reads pages and folders from standard input, a line each, and answers with exit codes.
Torch is imported once; each page's process is a copy of this one.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from docs.pages import ROOT, Block, blocks_of


def run_page(page: str, folder: Path) -> None:
    """Run in this process, which the page has to itself; output goes to a file in the folder."""
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT)
    for standard in (1, 2):
        os.dup2(output, standard)
    (folder / "examples").symlink_to(ROOT / "examples")
    os.chdir(folder)
    # What is tested is what this interpreter imports, also in the processes that a command starts.
    source = Path(sys.modules["paceline"].__file__ or "").parents[1]
    os.environ["PYTHONPATH"] = str(source)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    sys.path.insert(0, str(folder))
    session: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.needs is not None:
            continue
        sys.stdout.write(f"--- {block.place}\n")
        sys.stdout.flush()
        _run_block(block, session)


def _run_block(block: Block, session: dict[str, Any]) -> None:
    if block.file_name is not None:
        Path(block.file_name).write_text(block.code, encoding="utf-8")
    if block.language == "python":
        # Padded, so that a traceback has the page's own line.
        padded = "\n" * (block.line - 1) + block.code
        exec(compile(padded, block.page, "exec"), session)
    elif block.language == "console":
        for command in block.commands():
            code = _exit_code(command)
            assert code == 0, f"{block.place}: exit code {code} from: {command}"
    elif block.language == "toml" and "[[node]]" in block.code:
        from paceline import load_cluster

        load_cluster(str(block.file_name))


def _exit_code(command: str) -> int:
    from paceline.cli import frame, main

    words = shlex.split(command, comments=True)
    if words[0] == "paceline":  # without the seconds that a new interpreter needs for torch
        return frame.run(main.app, words[1:])
    return subprocess.run(command, shell=True, check=False, timeout=120).returncode


def _exit_code_of_page(page: str, folder: Path) -> int:
    process = os.fork()
    if process == 0:
        try:
            run_page(page, folder)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> None:
    """Answer until standard input ends."""
    import paceline.cli.main
    import paceline.rehearse
    import paceline.train  # noqa: F401

    for line in sys.stdin:
        page, folder = line.rstrip("\n").split("\t")
        sys.stdout.write(f"{_exit_code_of_page(page, Path(folder))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
