"""What a lab leaves on the disk: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("emulation", ["namespaces", "software"])
def test_a_lab_leaves_nothing_in_the_temporary_folder(tmp_path: Path, emulation: str) -> None:
    command = [sys.executable, "-m", "paceline", "lab", "run", "--emulation", emulation]
    subprocess.run(
        [*command, "--nodes", "1", "--workers", "2", "--", "true"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert list(tmp_path.iterdir()) == []
