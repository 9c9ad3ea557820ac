"""The reports of predictions, races and advice: what they say, and that their numbers are right."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from paceline.cli import frame, main
from paceline.studies.page import Page, Section, page_html
from paceline.studies.reports.race import race_page
from synthetic_reports import advice, pages, prediction, race

HOSTILE = "</script><script>alert(1)</script>"


def section(page: Page, heading: str) -> Section:
    (found,) = [each for each in page.sections if each.heading == heading]
    return found


def rows(page: Page, heading: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(section(page, heading).csv)))


@pytest.fixture(scope="module")
def all_pages(tmp_path_factory: pytest.TempPathFactory) -> list[Page]:
    return pages(tmp_path_factory.mktemp("traces"))


def test_a_prediction_in_words_and_numbers(all_pages: list[Page]) -> None:
    page, *_ = all_pages
    text = " ".join(page.summary)
    assert "With daso, a worker needs 130 ms (117 ms to 143 ms) for a step of 32 samples" in text
    assert "daso has the shortest step; sync takes 310 ms" in text
    assert "has 4 steps, takes 2 hours and costs 64.00 US dollars" in text
    parts = rows(page, "Where the time goes")
    assert [row["strategy"] for row in parts] == ["daso", "sync"]
    for row in parts:
        whole = sum(float(row[name]) for name in ("compute_s", "exposed_communication_s", "host_s"))
        assert whole == pytest.approx(float(row["step_s"]))
    memory = rows(page, "Memory")[0]
    assert int(memory["activations_and_workspaces_bytes"]) == 1000 - (100 + 90 + 180 + 10)
    timeline = section(page, "Timeline of a step")
    # Equal steps are shown once, a cycle from its first step to its longest.
    assert [panel.title for (panel,) in timeline.views.values()] == [
        "One step",
        "4 steps, the longest one last",
    ]


def test_predictions_too_close_to_tell_apart(all_pages: list[Page]) -> None:
    from paceline.cluster.devices import load_device
    from paceline.studies.reports.prediction import prediction_page
    from synthetic_reports import MEMORY

    close = [prediction("sync", 0.1), prediction("daso", 0.101)]
    page = prediction_page(close, memory=MEMORY, device=load_device("h200"))
    assert "sync and daso are within 5% of each other" in " ".join(page.summary)
    assert "Timeline of a step" not in [each.heading for each in page.sections]


def test_a_race_in_words_and_numbers() -> None:
    page = race_page(race())
    assert page.summary == [
        "ddp reached 95% accuracy first, after 20 s.",
        "The mean error of the predicted step times is 10%, the largest 10% (ddp).",
    ]
    reached = [
        (row["strategy"], float(row["accuracy"])) for row in rows(page, "Accuracy over time")
    ]
    assert reached == [("ddp", 0.8), ("ddp", 0.96), ("daso", 0.7), ("daso", 0.9)]
    (only,) = rows(page, "Predicted against measured")
    assert float(only["predicted_step_s"]) == 0.44 and float(only["measured_step_s"]) == 0.4
    assert [row["bytes_between_nodes"] for row in rows(page, "Bytes between nodes")] == [
        "500000000",
        "40000000",
    ]


def test_advice_in_words_and_numbers(all_pages: list[Page]) -> None:
    page = all_pages[2]
    assert page.summary[0] == "Advised: daso, batch 32."
    assert "2 times (1.8 to 2.2) plain DDP's" in page.summary[1]
    assert page.findings_heading == "What it may cost"
    assert page.summary[-1] == "One hour too late."
    assert page.findings == ["Nodes train apart for four steps."]
    assert page.overview is not None
    assert [row[0] for row in page.overview.rows] == ["plain DDP", "+ daso", "instead: local-sgd"]
    assert page.overview.rows[1][4] == "2 times (1.8 to 2.2)"
    assert page.code["In your training script"] == advice()["attach"]
    assert [float(row["over_plain"]) for row in rows(page, "What each change brings")] == [1.0, 2.0]
    assert [float(row["dollars_per_million_samples"]) for row in rows(page, "What it costs")] == [
        3.0,
        1.5,
        pytest.approx(3.0 / 1.8),
    ]


def test_every_section_says_how_to_read_it_in_one_sentence(all_pages: list[Page]) -> None:
    for page in all_pages:
        for each in page.sections:
            assert each.how_to_read.endswith(".") and ". " not in each.how_to_read
            assert len(each.csv.splitlines()) > 1


def test_a_hostile_name_stays_text(tmp_path: Path) -> None:
    for page in pages(tmp_path, name=HOSTILE):
        assert "<script>alert" not in page_html(page)


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "mlp", "--device", "h200", "--images", "svg"),
        ("predict", "mlp", "--device", "h200", "--out", "x", "--images", "gif"),
        ("trace", "compare", "nosuch.json", "nosuch.json"),
        ("trace", "compare", "nosuch.txt", "nosuch.json"),
        ("explore", "mlp", "--cluster", "mixed", "--no-browser"),
        ("explore", "mlp", "--strategy", "nosuch", "--no-browser"),
        ("explore", "mlp", "--workers", "8:2", "--no-browser"),
        ("explore", "nosuchmodel", "--no-browser"),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert frame.run(main.app, list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("Error: ") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_predict_writes_report_figures_and_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "here"
    arguments = ["predict", "mlp", "--cluster", "lab-2x2", "--compare", "--out", str(out), "--json"]
    assert frame.run(main.app, arguments) == 0
    files = {path.name for path in out.iterdir()}
    assert {"report.html", "prediction.json", "trace-sync.json.gz", "trace-daso.json.gz"} <= files
    html = (out / "report.html").read_text("utf-8")
    assert (
        "mlp on 4 × AMD EPYC in 2 nodes: what a step costs" in html or "what a step costs" in html
    )
    assert frame.run(main.app, ["predict", "mlp", "--device", "h200", "--out", str(out)]) == 0
    assert "mlp on one h200" in (out / "report.html").read_text("utf-8")
