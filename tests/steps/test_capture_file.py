"""Captures on disk."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from paceline.steps import Capture, capture_step, zoo_step
from paceline.steps.file import capture_to_dict, load_capture, save_capture


@pytest.fixture(scope="module")
def capture() -> Capture:
    return capture_step(zoo_step("small-gpt", batch=2, precision="bf16"))


def test_a_capture_survives_its_file(capture: Capture, tmp_path: Path) -> None:
    save_capture(capture, tmp_path / "step.gz")
    again = load_capture(tmp_path / "step.gz")
    assert again == capture
    assert [k.outputs for k in again.kernels()] == [k.outputs for k in capture.kernels()]


def test_a_kernel_that_comes_often_stands_there_once(capture: Capture) -> None:
    written = capture_to_dict(capture)["kernels"]
    assert len(written) == len(set(capture.kernels())) < len(list(capture.kernels()))


def sentence(path: Path) -> str:
    with pytest.raises(ValueError, match=r".") as raised:
        load_capture(path)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_files_that_are_no_captures(capture: Capture, tmp_path: Path) -> None:
    path = tmp_path / "step.gz"
    assert "not a capture" in sentence(path)  # missing
    save_capture(capture, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "cut off" in sentence(path)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(each ^ 255 for each in whole[middle:]))
    assert "cut off" in sentence(path)
    path.write_text("{}")
    assert "not a capture" in sentence(path)


@pytest.mark.parametrize(
    "values",
    [{}, [], 3, {"format": "paceline-capture", "version": 2}, {"format": "x", "version": 1}],
    ids=str,
)
def test_json_that_is_no_capture_of_this_version(values: object, tmp_path: Path) -> None:
    path = tmp_path / "step.gz"
    path.write_bytes(gzip.compress(json.dumps(values).encode()))
    assert "no capture of schema version 1; capture the step again" in sentence(path)


def test_a_capture_without_its_kernels(capture: Capture, tmp_path: Path) -> None:
    values = capture_to_dict(capture)
    del values["kernels"]
    path = tmp_path / "step.gz"
    path.write_bytes(gzip.compress(json.dumps(values).encode()))
    assert "not a capture" in sentence(path)
