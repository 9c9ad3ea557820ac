"""Runs every command of a page of the documentation and writes its output below it.

python benchmarks/questions.py                          # all of docs/questions.md
python benchmarks/questions.py 2 7                      # its second and its seventh
python benchmarks/questions.py explanation/paper-study.md
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
_CONSOLE = re.compile(r"^```console\n(\$ .*)\n(?:.*\n)*?```$", re.MULTILINE)
_FILE = re.compile(r"^```python\n# (\S+\.py)\n((?:.*\n)*?)```$", re.MULTILINE)


def answered(command: str, folder: Path) -> str:
    """What a command prints, on a terminal of 100 columns."""
    words = shlex.split(command)
    own = ["-m", *words] if words[0] == "paceline" else words[1:]  # else it is "python FILE"
    done = subprocess.run(
        [sys.executable, *own],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def main() -> None:
    """Rewrite the page."""
    asked = {int(word) for word in sys.argv[1:] if word.isdigit()}
    pages = [word for word in sys.argv[1:] if not word.isdigit()]
    page = ROOT / "docs" / (pages[0] if pages else "questions.md")
    text = page.read_text("utf-8")
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "examples").symlink_to(ROOT / "examples")
        for file_name, code in _FILE.findall(text):
            (Path(name) / file_name).write_text(code, "utf-8")
        for number, match in enumerate(list(_CONSOLE.finditer(text)), start=1):
            if asked and number not in asked:
                continue
            command = match[1]
            print(command, flush=True)
            output = answered(command.removeprefix("$ "), Path(name))
            # A command's text is unique on the page, so it finds its block in what is new by now.
            start = text.index(f"```console\n{command}\n")
            end = text.index("\n```", start)
            text = f"{text[:start]}```console\n{command}\n{output.rstrip()}{text[end:]}"
            page.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
