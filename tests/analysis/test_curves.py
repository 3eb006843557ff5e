"""Learning curves: a mean only where all runs are, a band that says what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from twm.analysis.curves import curves_figure, panel, series_of
from twm.analysis.runs import load_run
from twm.analysis.variants import group
from twm.config import preset, with_options

WriteRun = Callable[..., Path]
CPU = with_options(preset("cpu"), {"env": "Pong"})


def test_the_mean_stops_where_a_run_stops(write_run: WriteRun) -> None:
    full = {5_000: 1.0, 10_000: 3.0, 15_000: 5.0}
    runs = [
        load_run(write_run(f"run-{seed}", CPU, evaluations))
        for seed, evaluations in enumerate([full, {5_000: 2.0, 10_000: 6.0}, {5_000: 3.0, 10_000: 9.0}])
    ]
    series = series_of("ours", runs)
    assert [len(line.x) for line in series.runs] == [3, 2, 2]
    assert series.mean.x.tolist() == [5_000, 10_000]
    assert series.mean.y.tolist() == [2.0, 6.0]
    assert series.mean.high[0] == pytest.approx(2 + 4.302653 / np.sqrt(3), rel=1e-6)  # t of two degrees, s = 1
    # A third run without any evaluation: the group has no mean yet.
    waiting = series_of("ours", [*runs, load_run(write_run("waiting", CPU))])
    assert len(waiting.mean.x) == 0
    assert len(waiting.runs) == 3


def test_one_run_has_its_episodes_band_and_two_have_none(write_run: WriteRun) -> None:
    first, second = (load_run(write_run(f"run-{seed}", CPU, {5_000: 1.0 + seed})) for seed in range(2))
    one, two = series_of("ours", [first]), series_of("ours", [first, second])
    assert (one.mean.low.tolist(), one.mean.high.tolist()) == ([0.0], [2.0])
    assert two.mean.y.tolist() == [1.5]
    assert np.isnan(two.mean.low).all()


def test_benchmark_games_are_normalised_beside_published_points(write_run: WriteRun) -> None:
    (variant,), _ = group([load_run(write_run("run", CPU, {5_000: -20.7, 10_000: 14.6}))])
    drawn = panel("Pong", {"ours": variant})
    assert drawn.unit == "human-normalised score"
    assert drawn.series[0].mean.y.tolist() == [0.0, 1.0]
    x, y = drawn.points["TWM (published)"]
    assert x.tolist() == [5_000, 10_000]
    assert y.tolist() == pytest.approx([0.3 / 35.3, 0.9 / 35.3])


def test_other_environments_keep_their_scores_and_levels(write_run: WriteRun) -> None:
    path = write_run("run", preset("tiny"), {1_000: 0.0}, [0.5, 0.7], random_mean=-0.6, optimal_return=1.0)
    (variant,), _ = group([load_run(path)])
    drawn = panel("Catch", {"ours": variant})
    assert drawn.unit == "score"
    assert drawn.levels == {"random policy": -0.6, "optimum": 1.0}
    assert drawn.points == {}
    assert drawn.series[0].mean.y.tolist() == pytest.approx([0.0, 0.6])


def test_figure_names_everything_and_says_when_nothing_is_there(write_run: WriteRun) -> None:
    (variant,), _ = group([load_run(write_run("run", CPU))])
    figure = curves_figure([panel("Pong", {"ours": variant})])
    (axes,) = figure.axes
    assert axes.get_title() == "Pong"
    assert [text.get_text() for text in axes.texts] == ["no evaluation yet"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours", "random policy"]
    assert [text.get_text() for text in curves_figure([]).texts] == ["no evaluations to draw"]
