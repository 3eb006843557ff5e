"""Curves of one run: which records count, speeds by hand, figures of nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest

from twm.analysis import run_curves
from twm.analysis.run_curves import Curve
from twm.analysis.runs import load_run
from twm.config import preset

RECORDS: list[dict[str, Any]] = [
    {"interactions": 100, "updates": 0, "episode/score": -3.0, "time/elapsed": 1.0},
    {"interactions": 100, "updates": 0, "loss/decoder": 9.0, "pretrain/observation": 50, "time/elapsed": 11.0},
    {"interactions": 100, "updates": 0, "loss/decoder": 7.0, "pretrain/observation": 100, "time/elapsed": 21.0},
    {"interactions": 200, "updates": 40, "loss/decoder": 5.0, "policy/entropy": 0.9, "time/elapsed": 41.0},
    {"interactions": 200, "updates": 40, "eval/score_mean": 1.0, "eval/score_low": 0.5, "eval/score_high": 1.5},
    {"interactions": 300, "updates": 90, "loss/decoder": 4.0, "policy/entropy": None, "time/elapsed": 51.0},
    {"interactions": 400, "updates": 140, "loss/decoder": math.nan, "time/elapsed": 76.0},
]


def test_a_curve_skips_what_is_no_number() -> None:
    curve = run_curves.curve(run_curves.main_phase(RECORDS), "loss/decoder")
    assert curve.x.tolist() == [200, 300]
    assert curve.y.tolist() == [5, 4]
    assert run_curves.curve(RECORDS, "policy/entropy").x.tolist() == [200]
    assert len(run_curves.curve(RECORDS, "no/such").x) == 0


def test_pretraining_goes_over_its_own_updates() -> None:
    curve = run_curves.curve(RECORDS, "loss/decoder", over="pretrain/observation")
    assert curve.x.tolist() == [50, 100]
    assert [r["pretrain/observation"] for r in run_curves.pretraining(RECORDS)] == [50, 100]


def test_speed_by_hand() -> None:
    """From 200 to 300 in 10 s, to 400 in 25 s; 50 updates each."""
    learning = [r for r in run_curves.main_phase(RECORDS) if r["updates"]]
    interactions, updates = run_curves.speed(learning), run_curves.speed(learning, "updates")
    assert interactions.x.tolist() == updates.x.tolist() == [300, 400]
    assert interactions.y.tolist() == [10, 4]
    assert updates.y.tolist() == [5, 2]


def test_a_clock_that_goes_back_gives_no_speed() -> None:
    records = [
        {"interactions": 100, "time/elapsed": 50.0},
        {"interactions": 200, "time/elapsed": 10.0},
        {"interactions": 300, "time/elapsed": 20.0},
    ]
    assert run_curves.speed(records).y.tolist() == [10]


def test_table_holds_the_records_that_say_something() -> None:
    rows = run_curves.metrics_table(RECORDS, ["eval/score_mean", "policy/entropy"])
    assert rows == [
        {"interactions": 200, "updates": 40, "policy/entropy": 0.9},
        {"interactions": 200, "updates": 40, "eval/score_mean": 1.0},
    ]


def test_a_panel_for_each_curve_that_has_points() -> None:
    empty = run_curves.curve([], "x")
    curve = run_curves.curve(RECORDS, "loss/decoder")
    figure = run_curves.grid_figure({"a": curve, "b": empty, "c": curve, "d": curve, "e": curve})
    assert [ax.get_title() for ax in figure.axes if ax.get_visible()] == ["a", "c", "d", "e"]
    assert "nothing recorded yet" in run_curves.grid_figure({"b": empty}).texts[0].get_text()


def test_a_running_mean_does_not_lag() -> None:
    """Points 0..8 on a straight line: the mean over three lies on the line, from 1 to 7."""
    line = Curve(*[run_curves.np.arange(9.0)] * 2)
    (ax,) = run_curves.grid_figure({"line": line}, smooth=3).axes
    mean = ax.lines[1]
    assert mean.get_xdata().tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert mean.get_ydata() == pytest.approx(mean.get_xdata())
    (ax,) = run_curves.grid_figure({"line": line}, smooth=3, exact={"line"}).axes
    assert len(ax.lines) == 1


def test_entropies_show_the_threshold() -> None:
    figure = run_curves.entropies_figure(RECORDS, 0.25)
    (ax,) = figure.axes
    assert [line.get_ydata()[0] for line in ax.lines] == [0.9, 0.25]


def test_every_figure_draws_from_any_records() -> None:
    for records in ([], RECORDS[:1], RECORDS):
        for draw in (
            run_curves.losses_figure,
            run_curves.dreams_figure,
            run_curves.pretraining_figure,
            run_curves.speed_figure,
        ):
            assert draw(records).get_figwidth() > 0


def test_score_figure(write_run: Any) -> None:
    run = load_run(write_run("a", preset("tiny"), {1000: 1.0, 2000: 3.0}, [4.0, 5.0], optimal_return=5.0))
    figure = run_curves.score_figure(run, RECORDS)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["games while training (mean)", "evaluation, 95 % interval", "random policy", "best possible"]
    unfinished = load_run(write_run("b", preset("tiny")))
    assert "no scores yet" in run_curves.score_figure(unfinished, []).texts[0].get_text()
