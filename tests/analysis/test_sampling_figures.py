"""The figure of balanced sampling: keys, halves, bins, and the counts that a run keeps."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from twm.analysis import sampling_figures
from twm.config import load
from twm.train.files import RunError


def test_names_of_temperatures() -> None:
    assert [sampling_figures.name_of(tau) for tau in sampling_figures.TEMPERATURES] == ["5", "20", "100", "uniform"]
    assert sampling_figures.label_of(math.inf) == "uniform (τ = ∞)"
    assert sampling_figures.label_of(2.5) == "τ = 2.5"


def test_halves_by_hand() -> None:
    """Visits 4 2 1 1: the first entry takes half; the first two 6 of 8."""
    halves = sampling_figures.halves({"20": np.array([4, 2, 1, 1]), "uniform": np.array([1, 1, 1, 1])})
    assert halves == {
        "20": {"half_time_entry": 1, "first_half_share": 0.75},
        "uniform": {"half_time_entry": 2, "first_half_share": 0.5},
    }


def test_table_in_groups_of_neighbours() -> None:
    """100 entries in four groups of 25, the first visited three times as often as each other one."""
    visits = np.ones(100, np.int32)
    visits[:25] = 3
    rows = sampling_figures.sampling_table({"x": visits})
    assert [row["Entries up to"] for row in rows] == [25, 50, 75, 100]
    assert [row["x: visits"] for row in rows] == [3, 1, 1, 1]
    assert [row["x: share of time"] for row in rows] == pytest.approx([0.5, 2 / 3, 5 / 6, 1])


def test_figure_marks_the_half() -> None:
    visits = np.ones(1000, np.int32)
    figure = sampling_figures.sampling_figure({"τ = 20": visits, "uniform": np.r_[visits[:500] * 3, visits[:500]]})
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == ["τ = 20", "uniform"]
    dots = [line for line in right.lines if line.get_marker() == "o"]
    assert [int(dot.get_xdata()[0]) for dot in dots] == [500, 334]
    assert "no visits" in sampling_figures.sampling_figure({}).texts[0].get_text()


def test_paper_visits_simulates_each_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_figures, "simulate", lambda tau: np.array([1, 2 if math.isinf(tau) else 3]))
    monkeypatch.setattr(sampling_figures.os, "sched_getaffinity", lambda _: {0})
    found = sampling_figures.paper_visits((20.0, math.inf))
    assert {name: visits.tolist() for name, visits in found.items()} == {"20": [1, 3], "uniform": [1, 2]}


def test_visits_of_a_run(small_run: Path) -> None:
    """Every update of the main phase draws a batch; pretraining counts none."""
    config = load(small_run / "config.json")
    found = sampling_figures.run_visits(small_run)
    assert len(found.visits) == 120
    assert found.visits.sum() == found.updates * config.world_model.batch_size
    simulated = sampling_figures.same_schedule(config, found, config.replay.temperature)
    assert simulated.sum() == found.visits.sum()
    assert simulated.shape == found.visits.shape


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(RunError, match="has no checkpoint yet"):
        sampling_figures.run_visits(tmp_path)
