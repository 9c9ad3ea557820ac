"""``paceline measure kernels`` and ``paceline fit``: from a profile to a prediction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest

from paceline.cli import frame, main
from paceline.cli.fit import fit
from paceline.kernels.profile import Profile, Timing, load_profile
from paceline.measure.kernel_fit import NUM_STEPS
from paceline.steps import capture_step, zoo_step
from synthetic_profile import one_thread, profile


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    with one_thread():
        yield tmp_path


def run(*arguments: str) -> int:
    return frame.run(main.app, list(arguments))


def test_measuring_in_two_parts(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("here.kernels.gz")
    kernels = dict.fromkeys(capture_step(zoo_step("mlp", batch=2)).kernels())
    Profile({"steps": []}, {kernel: Timing(None) for kernel in kernels}).save(path)
    command = ("measure", "kernels", "--device", "cpu", "--out", str(path))
    assert run(*command, "--budget", "5 ms") == 0
    out, err = capsys.readouterr()
    assert "written to here.kernels.gz" in out
    assert "the same command continues with the rest" in out
    assert load_profile(path).planned()
    assert run(*command, "--budget", "60 s", "--threads", "1", "--json") == 0
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert (value["file"], value["planned"], value["failed"]) == ("here.kernels.gz", {}, {})
    assert sum(value["measured"].values()) == len(kernels)
    assert value["device"] == load_profile(path).facts["device_name"]
    assert "Traceback" not in err


def test_the_plan_alone_takes_what_comes_with_paceline_and_a_step_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ("measure", "kernels", "--device", "cpu", "--out", "x.kernels.gz", "--plan-only")
    assert run(*command, "--model", "mlp", "--batch", "7", "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["measured"], value["failed"]) == ({}, {})
    planned = load_profile("x.kernels.gz").planned()
    assert sum(value["planned"].values()) == len(planned) > 5000
    first = set(capture_step(zoo_step("mlp", batch=7)).kernels())
    assert set(planned[: len(first)]) == first


def test_from_a_profile_to_a_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    profile().save(Path("my-gpu.kernels.gz"))
    assert run("fit", "my-gpu.kernels.gz", "--steps", "30", "--seed", "3", "--json") == 0
    fit = json.loads(capsys.readouterr().out)
    assert fit["file"] == "my-gpu.model.safetensors"
    assert fit["device"] == "h200"
    # Ten reductions are too few to learn from, but not to go on from what we know.
    assert set(fit["residuals"]) == {"matmul", "pointwise", "reduction"}
    assert fit["host_error"] is None
    assert run("predict", "mlp", "--model-file", fit["file"], "--json") == 0
    assert json.loads(capsys.readouterr().out)["step_s"] > 0


OWN = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 50), nn.ReLU(), nn.Linear(50, 10))
"""


def test_a_step_that_was_measured_is_predicted_from_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("own.py").write_text(OWN)
    # What is measured already tells the device's speed; the small steps would take long.
    Profile({"steps": []}, profile().timings).save(Path("here.kernels.gz"))
    step = ("--batch", "4", "--input", "3x8x8", "--classes", "10", "--optimizer", "adam")
    measure = ("measure", "kernels", "--device", "cpu", "--out", "here.kernels.gz")
    assert run(*measure, "--model", "own.py:make", "--model", "mlp", *step, "--json") == 0
    assert json.loads(capsys.readouterr().out)["planned"] == {}
    sources = {
        each
        for timing in load_profile("here.kernels.gz").timings.values()
        for each in timing.sources
    }
    assert sources == {"net", "own.py:make", "mlp"}
    assert run("fit", "here.kernels.gz", "--steps", "20", "--json") == 0
    model_file = json.loads(capsys.readouterr().out)["file"]
    for model in ("own.py:make", "mlp"):
        assert run("predict", model, *step, "--model-file", model_file, "--json") == 0
        assert json.loads(capsys.readouterr().out)["method"]["table"] == pytest.approx(1.0)


def test_a_fit_from_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    profile().save(Path("my-gpu.kernels.gz"))
    assert run("fit", "my-gpu.kernels.gz", "--steps", "20", "--from-nothing", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)["residuals"]) == {"matmul", "pointwise"}


def test_a_fits_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    profile().save(Path("my-gpu.kernels.gz"))
    assert run("fit", "my-gpu.kernels.gz", "--steps", "20", "--out", "deep/x.safetensors") == 0
    out, _ = capsys.readouterr()
    assert "matmul" in out
    assert "pointwise" in out
    assert "written to deep/x.safetensors" in out
    assert Path("deep/x.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fit", "nosuch.kernels.gz"), "There is no profile nosuch.kernels.gz"),
        (("fit", "cut.kernels.gz"), "is cut off or damaged"),
        (("fit", "other.kernels.gz"), "schema version 2, this paceline reads 1"),
        (("fit", "text.kernels.gz"), "is not a kernel profile"),
        (("fit", "empty.kernels.gz"), "has no measured kernels"),
        (("fit", "good.kernels.gz", "--steps", "1"), "--steps"),
        (("measure", "kernels"), "--out"),
        (("measure", "kernels", "--out", "x.gz"), "give --out x.kernels.gz"),
        (("measure", "kernels", "--out", "x.kernels.gz", "--device", "tpu"), "not on 'tpu'"),
        (("measure", "kernels", "--out", "x.kernels.gz", "--budget", "soon"), "soon"),
        (("measure", "kernels", "--out", "x.kernels.gz", "--threads", "0"), "--threads"),
        (("measure", "kernels", "--out", "x.kernels.gz", "--model", "nosuch"), "'nosuch'"),
        (
            ("measure", "kernels", "--out", "x.kernels.gz", "--model", "mlp", "--input", "3xq"),
            "3xq",
        ),
        (("measure", "kernels", "--out", "far.kernels.gz", "--device", "cpu"), "another --out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    profile().save(Path("good.kernels.gz"))
    Path("cut.kernels.gz").write_bytes(Path("good.kernels.gz").read_bytes()[:2000])
    Path("text.kernels.gz").write_text("hello")
    Profile({"version": 2}).save(Path("other.kernels.gz"))
    Profile({"device_name": "Another CPU"}).save(Path("empty.kernels.gz"))
    Profile({"device_name": "Another CPU"}).save(Path("far.kernels.gz"))
    assert run(*arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert words in err


def test_progress_is_shown_to_a_terminal_on_standard_error_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with frame.progress() as report:
        report("timing kernels", 3, 7)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take a pipe for a terminal
    monkeypatch.setenv("TERM", "xterm")
    with frame.progress() as report:
        report("timing kernels", 3, 7)
    out, err = capsys.readouterr()
    assert out == ""
    assert "timing kernels" in err
    assert "3/7" in err


def test_fit_trains_as_long_as_the_function_that_it_calls() -> None:
    assert signature(fit).parameters["steps"].default == NUM_STEPS
