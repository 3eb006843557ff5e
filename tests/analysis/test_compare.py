"""Whole reports over many runs: complete where the data are, honest where they are not."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from twm.analysis.compare import Section, compare
from twm.analysis.compare_figures import Improvement, aggregates_figure, improvement_figure, profiles_figure
from twm.analysis.compare_statistics import aggregate_sections
from twm.analysis.runs import load_run
from twm.analysis.section import Writer
from twm.analysis.variants import group
from twm.config import Config, preset, with_options
from twm.intervals import Estimate
from twm.lab import scores
from twm.lab.ablations import ABLATIONS, budget_ablation
from twm.lab.aggregate import performance_profile

WriteRun = Callable[..., Path]
UNKNOWN = math.nan


def by_title(sections: list[Section]) -> dict[str, Section]:
    assert len({section.title for section in sections}) == len(sections)
    for section in sections:
        assert section.text
        for path in (section.figure, section.table):
            assert path is None or path.stat().st_size > 0
    return {section.title: section for section in sections}


def rows_of(section: Section) -> list[dict[str, str]]:
    assert section.table is not None
    with section.table.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def fits(figure: Figure) -> bool:
    """Whether everything that is drawn, labels and legends included, lies within the picture (inches, 1 % leeway)."""
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    leeway = 0.01 * width
    return bool(min(box.x0, box.y0) > -leeway and box.x1 < width + leeway and box.y1 < height + leeway)


def overlapping(figure: Figure) -> list[str]:
    """Row labels that run into the one above."""
    boxes = [(label.get_text(), label.get_window_extent()) for label in figure.axes[0].get_yticklabels()]
    return [below for (_, above), (below, box) in itertools.pairwise(boxes) if box.y1 > above.y0]


def test_nothing_at_all(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    sections = by_title(compare([tmp_path / "empty"], tmp_path / "out"))
    assert sections["Runs"].text == "No runs were found."
    assert sections["Final scores"].text.startswith("No run has finished")
    assert sections["Aggregates"].figure is None
    assert len(rows_of(sections["Results beside the published ones"])) == 28
    assert "None of the 26 games has a finished run" in sections["Results beside the published ones"].notes[0]
    assert [note.split(":")[0] for note in sections["Ablations without runs"].notes] == [*ABLATIONS, "budget-…"]
    assert sections["Throughput"].notes[-1].startswith("No benchmark results")


def test_one_game_one_seed(write_run: WriteRun, tmp_path: Path) -> None:
    config = with_options(preset("cpu"), {"env": "Krull"})
    path = write_run("Krull-0", config, {5_000: 1700.0}, [2665.5, 2665.5])
    sections = by_title(compare([path], tmp_path / "out"))
    mean = next(row for row in rows_of(sections["Aggregates (Krull)"]) if row["Metric"] == "mean")
    assert (float(mean["Value"]), mean["Low"], mean["High"]) == (1.0, "", "")
    notes = sections["Aggregates (Krull)"].notes
    assert "cpu preset: 1 finished run a game; no interval, as that takes two runs of every game." in notes
    assert sections["Final scores"].notes[0] == "Krull, cpu preset: one run only"
    assert sections["Learning curves"].figure is not None
    assert (
        "25,000 interactions, the published methods 100,000" in sections["Results beside the published ones"].notes[1]
    )
    better = {row["Second"]: row["Probability"] for row in rows_of(sections["Probability of improvement"])}
    assert (better["SimPLe"], better["TWM at 25K (published)"]) == ("1", "0")  # 2204.8 and 4234


def test_a_toy_study_with_ablations(write_run: WriteRun, tmp_path: Path) -> None:
    """No human scores: no aggregates, but curves, scores and probabilities on the environment's own scale."""
    tiny = preset("tiny")
    uniform = ABLATIONS["uniform-sampling"].apply(tiny)
    for seed in range(3):
        for name, base, score in (("base", tiny, 0.9), ("uniform", uniform, 0.1)):
            config = with_options(base, {"seed": seed})
            end = {"random_mean": -0.6, "optimal_return": 1.0}
            finals = None if name == "uniform" and seed == 2 else [score + seed / 100] * 2
            write_run(f"study/{name}-{seed}", config, {1_000: 0.0, 2_000: score}, finals, **end)
    sections = by_title(compare([tmp_path / "study"], tmp_path / "out"))
    assert "only ones with human scores" in sections["Aggregates"].text
    (row,) = rows_of(sections["Probability of improvement"])
    assert (row["First"], row["Second"]) == ("tiny preset", "tiny preset · uniform-sampling")
    assert (row["Probability"], row["Low"], row["High"]) == ("1", "1", "1")
    ablation = sections["Ablation of the tiny preset: Uniform sampling (τ = ∞)"]
    assert ablation.figure is not None
    assert ablation.notes == [
        "Catch, Uniform sampling (τ = ∞), study/uniform-2: unfinished: 2,000 of 4,000 interactions"
    ]
    assert {row["Variant"] for row in rows_of(ablation)} == {"tiny preset", "tiny preset · uniform-sampling"}
    assert {row["Variant"] for row in rows_of(sections["Learning curves"])} == {"tiny preset"}
    assert not any(note.startswith("uniform-sampling") for note in sections["Ablations without runs"].notes)


def test_published_means_as_runs_give_the_published_aggregates(write_run: WriteRun, tmp_path: Path) -> None:
    runs = [
        write_run(f"{game}-{seed}", with_options(Config(), {"env": game, "seed": seed}), {}, [score, score])
        for game, score in scores.published("TWM").items()
        for seed in range(2)
    ]
    variants, _ = group(map(load_run, runs))
    aggregates, profiles = aggregate_sections(Writer(tmp_path / "out"), variants)
    assert (aggregates.title, profiles.title) == ("Aggregates (26 games)", "Performance profiles (26 games)")
    values = {(row["Method"], row["Metric"]): row for row in rows_of(aggregates)}
    assert float(values["paper preset", "mean"]["Value"]) == pytest.approx(0.956, abs=0.001)
    assert float(values["paper preset", "median"]["Value"]) == pytest.approx(0.505, abs=0.001)
    assert values["paper preset", "mean"]["Low"] == values["paper preset", "mean"]["Value"]  # both seeds the same
    assert values["TWM (published)", "iqm"]["Value"] == "0.459"
    assert ("TWM (published)", "optimality_gap") not in values  # nobody published it per method
    shares = {(row["Method"], row["Threshold"]): row["Share of runs above"] for row in rows_of(profiles)}
    ours = [share for (method, _), share in shares.items() if method == "paper preset"]
    theirs = [share for (method, _), share in shares.items() if method == "TWM (published), per-game means"]
    assert ours == theirs


def test_budgets_share_a_figure_and_benchmarks_are_read(write_run: WriteRun, tmp_path: Path) -> None:
    pong = with_options(Config(), {"env": "Pong"})
    write_run("runs/full", pong, {50_000: 1.0}, [18.0, 19.0])
    for count in (10_000, 25_000):
        write_run(f"runs/budget-{count}", budget_ablation(count).apply(pong), {5_000: -20.0}, [-20.0, -19.0])
    bench = {"machine": {"gflops": 300.0}, "parts": {"act_z": {"per_second": 800}}}
    (tmp_path / "runs" / "bench.json").write_text(json.dumps(bench))
    sections = by_title(compare([tmp_path / "runs"], tmp_path / "out", parameters={"observation": 8_234_532}))
    budget = sections["Ablation of the paper preset: Fewer interactions, same budget"]
    assert {row["Variant"] for row in rows_of(budget)} == {
        "paper preset",
        "paper preset · budget-10K",
        "paper preset · budget-25K",
    }
    assert budget.figure is not None
    with Image.open(budget.figure) as image:
        assert np.asarray(image.convert("L")).std() > 5  # something is drawn
    assert rows_of(sections["Throughput"])[4]["bench: per second"] == "800"
    assert "bench: gflops 300" in sections["Throughput"].notes
    assert rows_of(sections["Parameters"])[0]["Ours"] == "8234532"


def test_figures_keep_their_labels_inside() -> None:
    """Long names and many rows: nothing is cut off at the border."""
    known, unknown = Estimate(0.5, 0.4, 0.7), Estimate(0.2, UNKNOWN, UNKNOWN)
    long = "cpu preset · world_model.encoder_gradient=0.5, policy.advantage_scale=percentile"
    metrics = dict.fromkeys(("median", "iqm", "mean", "optimality_gap"), known)
    points = {method: {"median": 0.1, "mean": 0.2} for method in scores.METHODS}
    profile = performance_profile(np.array([[0.1, 0.5], [0.2, 0.9]]), np.linspace(0, 1, 11))
    figures = [
        aggregates_figure({long: metrics, "b": dict.fromkeys(metrics, unknown)}, points, 26),
        profiles_figure({long: profile}, {"TWM (published), per-game means": profile}, 2),
        improvement_figure([Improvement(long, long, 3, known), Improvement(long, "SPR", 1, unknown, published=True)]),
        improvement_figure([]),
        aggregates_figure({}, {}, 0),
    ]
    for figure in figures:
        assert fits(figure)
    assert overlapping(figures[0]) == []
    assert overlapping(figures[2]) == []
    assert "not published" in [text.get_text() for text in figures[0].axes[3].texts]
    assert [text.get_text() for text in figures[3].texts] == [
        "nothing to compare: no two methods with runs on the same game"
    ]
