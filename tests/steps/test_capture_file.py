"""Captures as plain values."""

from __future__ import annotations

import json

import pytest

from paceline.steps import Capture, capture_step, zoo_step
from paceline.steps.file import capture_from_dict, capture_to_dict


@pytest.fixture(scope="module")
def capture() -> Capture:
    return capture_step(zoo_step("small-gpt", batch=2, precision="bf16"))


def test_a_capture_survives_json(capture: Capture) -> None:
    again = capture_from_dict(json.loads(json.dumps(capture_to_dict(capture))))
    assert again == capture
    assert [k.outputs for k in again.kernels()] == [k.outputs for k in capture.kernels()]


def test_a_kernel_that_comes_often_stands_there_once(capture: Capture) -> None:
    written = capture_to_dict(capture)["kernels"]
    assert len(written) == len(set(capture.kernels())) < len(list(capture.kernels()))


@pytest.mark.parametrize(
    "values",
    [{}, [], 3, {"format": "paceline-capture", "version": 2}, {"format": "x", "version": 1}],
    ids=str,
)
def test_json_that_is_no_capture_of_this_version(values: object) -> None:
    with pytest.raises(ValueError, match="no capture of schema version 1; capture the step again"):
        capture_from_dict(values)
