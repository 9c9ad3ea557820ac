"""What a user installs: the wheel holds all of the package, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "paceline"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True, capture_output=True, timeout=120)
    (path,) = folder.iterdir()
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = [each for each in wheel.namelist() if each.endswith(f".dist-info/{name}")]
    return wheel.read(path).decode()


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    expected = {
        f"paceline/{path.relative_to(PACKAGE).as_posix()}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == expected
    assert "paceline/py.typed" in held
    # Each kind of data that the package reads when it runs.
    for ending in (".toml", ".html", ".css", ".js", ".json", ".safetensors", ".kernels.gz"):
        assert any(name.endswith(ending) for name in held), ending


def test_the_wheel_says_what_it_needs_and_starts(wheel: zipfile.ZipFile) -> None:
    told = Parser().parsestr(metadata(wheel, "METADATA"))
    assert told["Requires-Python"] == ">=3.11"
    assert {"lab", "tensorboard", "wandb", "mlflow"} <= set(told.get_all("Provides-Extra") or [])
    assert "Typing :: Typed" in (told.get_all("Classifier") or [])
    assert "BSD 3-Clause" in metadata(wheel, "licenses/LICENSE")
    assert "paceline = paceline.cli.main:main" in metadata(wheel, "entry_points.txt")
