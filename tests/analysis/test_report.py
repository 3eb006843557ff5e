"""``twm report``: a page from whatever there is, with what is missing said in words."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twm.analysis import dream_sections, report, sampling_figures, style
from twm.analysis.recording import Episode
from twm.analysis.section import Section
from twm.cli import main
from twm.config import ConfigError, preset

ONE_RUN = [
    *("The run", "Score", "Entropies", "Losses", "Dreams while training", "Pretraining", "Speed"),
    *("Imagined beside real", "Three dreams from one state", "A long dream", "Predicted frame stacks"),
    *("Attention at one step", "Attention on average", "World model quality", "Balanced sampling"),
]


@pytest.fixture(scope="module")
def made(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> report.Report:
    return report.report_run(small_run, tmp_path_factory.mktemp("report"), steps=120)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, but not drawn, which takes most of the time of a report."""

    def save(_: object, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a picture")
        return path

    monkeypatch.setattr(style, "save", save)


def test_a_finished_run_shows_everything(made: report.Report) -> None:
    assert [section.title for section in made.sections] == ONE_RUN
    assert made.missing == []
    for section in made.sections[1:]:
        assert section.figure is not None, section.title
        assert section.figure.is_file()
    text = made.page.read_text()
    assert text.count("data:image/png;base64,") == len(ONE_RUN) - 1
    assert "http" not in text


def test_the_facts_of_a_run(made: report.Report) -> None:
    table = made.sections[0].table
    assert table is not None
    with table.open(newline="") as file:
        facts = {row["What"]: row["Value"] for row in csv.DictReader(file)}
    assert facts["Environment"] == "Catch"
    assert facts["State"] == "finished"
    assert facts["Interactions"] == "120 of 120"
    assert facts["Final score, episodes"] == "2"


def test_the_data_of_films_and_quality_lies_beside(made: report.Report) -> None:
    base = made.page.parent
    quality = json.loads((base / "world-model-quality.json").read_text())
    assert quality["both"]["steps"] == 120
    rows = (base / "imagined-beside-real.csv").read_text().splitlines()
    assert rows[0] == "Strip,Step,Action,Reward"
    assert len(rows) == 1 + 4 * dream_sections.FILM_STEPS  # two moments, real and dream
    attention = (base / "attention-at-one-step.csv").read_text().splitlines()
    assert len(attention) == 1 + 2 * 2 * (6 * 3 - 1)  # sequences, layers, tokens of six steps without the last reward


@pytest.mark.usefixtures("undrawn")
def test_a_run_without_a_checkpoint_shows_its_curves(small_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run, run, ignore=shutil.ignore_patterns("step-*", "eval.json"))
    made = report.report_run(run, tmp_path / "out", steps=50)
    assert made.missing == ["Dreams to look at", "Balanced sampling"]
    text = made.page.read_text()
    assert "has no latest checkpoint yet" in text
    assert "eval.json is missing" in text
    assert "Losses" in [s.title for s in made.sections if s.figure]


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_has_just_begun(write_run: Any, tmp_path: Path) -> None:
    """Nothing but a configuration and the first record."""
    made = report.report_run(write_run("young", preset("tiny")), tmp_path / "out", steps=50)
    assert made.page.is_file()
    assert "Entropies" in made.missing
    assert "Nothing recorded yet." in made.page.read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_run_with_an_empty_log(write_run: Any, tmp_path: Path) -> None:
    run = write_run("young", preset("tiny"))
    (run / "metrics.jsonl").write_text("")
    made = report.report_run(run, tmp_path / "out", steps=50)
    assert "metrics.jsonl holds no records yet." in made.page.read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_damaged_log_is_read_as_far_as_it_goes(small_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run, run, ignore=shutil.ignore_patterns("step-*"))
    path = run / "metrics.jsonl"
    path.write_text("not json\n" + path.read_text())
    made = report.report_run(run, tmp_path / "out", steps=50)
    assert "metrics.jsonl has 1 lines that cannot be read" in made.page.read_text()
    assert made.sections[1].figure is not None


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run directory"):
        report.report_run(tmp_path, tmp_path / "out")


def test_the_busiest_window() -> None:
    """Rewards at steps 3, 4 and 9: windows of three steps that hold two of them start at 2 or 3; the first counts."""

    def episode(rewards: list[float]) -> Episode:
        n = len(rewards)
        return Episode(np.zeros((n, 1)), np.zeros(n, np.int64), np.array(rewards, np.float32), True)

    quiet, busy = episode([0] * 8), episode([0, 0, 0, 1, -1, 0, 0, 0, 0, 1, 0, 0, 0])
    assert dream_sections.busiest([quiet, busy], 3) == (1, 2)
    assert dream_sections.busiest([quiet, busy], 3, skip=[(1, 2)]) == (1, 7)
    assert dream_sections.busiest([quiet, busy], 20) == (1, 0)  # none is that long: the longest


# --------------------------------------------------------------------------------------------------
# The command


@pytest.mark.parametrize(("out", "expected"), [(["--out", "there"], "there"), ([], "{run}/report")])
def test_command_on_a_run(
    out: list[str],
    expected: str,
    small_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls: list[Any] = []

    def make(run: Path, directory: Path, **options: int) -> report.Report:
        calls.append((run, directory, options))
        sections = [Section("Score", "", figure=directory / "score.png"), Section("Dreams to look at", "Not made: …")]
        return report.Report(directory / "index.html", sections)

    monkeypatch.setattr(report, "report_run", make)
    directory = Path(expected.format(run=small_run))
    assert main(["report", str(small_run), "--steps", "70", "--seed", "3", *out]) == 0
    assert calls == [(small_run, directory, {"steps": 70, "seed": 3})]
    assert capsys.readouterr().out.splitlines() == [
        f"page     {directory / 'index.html'}",
        "sections 2, 1 with figures or tables",
        "missing  Dreams to look at",
    ]
    assert main(["report", str(small_run), "--json", *out]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["page"] == str(directory / "index.html")
    assert [section["figure"] for section in data["sections"]] == [str(directory / "score.png"), None]


@pytest.mark.usefixtures("undrawn")
def test_command_compares(write_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        config = preset("tiny")
        write_run(f"runs/{seed}", type(config)(**{**vars(config), "seed": seed}), {1000: 1.0}, [2.0, 3.0])
    out = tmp_path / "compared"
    assert main(["report", str(tmp_path / "runs"), "--compare", "--out", str(out)]) == 0
    text = (out / "index.html").read_text()
    assert "Final scores" in text
    assert "Parameters" in text
    assert "21,643,053" in text or "21643053" in text  # the paper's models with six actions, all four together
    assert str(out / "index.html") in capsys.readouterr().out


@pytest.mark.usefixtures("undrawn")
def test_command_on_the_committed_results(
    write_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run("results/cpu/a", preset("tiny"), {1000: 1.0}, [2.0, 3.0])
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 0
    assert (tmp_path / "report" / "index.html").is_file()
    assert "page     report/index.html" in capsys.readouterr().out


def test_command_on_the_sampling_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys per temperature and "uniform", nothing else on standard output."""

    def visits(temperatures: Any) -> dict[str, Any]:
        names = [sampling_figures.name_of(tau) for tau in temperatures]
        return {name: np.r_[np.full(500, 3 if name == "uniform" else 1), np.ones(500)].astype(int) for name in names}

    monkeypatch.setattr(sampling_figures, "paper_visits", visits)
    assert main(["report", "--figure", "sampling", "--out", str(tmp_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["5", "20", "100", "uniform"]
    assert data["20"] == {"half_time_entry": 500, "first_half_share": 0.5}
    assert data["uniform"] == {"half_time_entry": 334, "first_half_share": 0.75}
    assert {path.name for path in tmp_path.iterdir()} == {
        *("index.html", "balanced-sampling.png", "balanced-sampling.csv", "balanced-sampling.json"),
    }
    assert main(["report", "--figure", "sampling", "--out", str(tmp_path)]) == 0
    assert "half of the time on the first 334 entries, 0.750 of it on the first half" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["runs/a", "runs/b"], "2 runs were given: add --compare to compare them, or give one"),
        (["runs"], "runs is not a run directory, but holds 2 runs: add --compare, or give one of them"),
        (["nowhere"], "there is nothing at nowhere: give a run directory"),
        (["runs/a", "--figure", "sampling"], "--figure sampling needs no run"),
    ],
)
def test_usage(
    args: list[str],
    message: str,
    write_run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("runs/a", "runs/b"):
        write_run(name, preset("tiny"))
    monkeypatch.chdir(tmp_path)
    assert main(["report", *args]) != 0
    assert message in capsys.readouterr().err


def test_infinite_temperature_has_a_name() -> None:
    assert sampling_figures.name_of(math.inf) == "uniform"
