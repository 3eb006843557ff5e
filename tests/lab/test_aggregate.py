"""Statistics against numbers by hand and against scipy, which is independent of ours."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from twm.config import ConfigError
from twm.lab import aggregate
from twm.lab.aggregate import Scores

NAN = math.nan


def study(runs: int, games: int, seed: int = 0) -> Scores:
    """Skewed scores with levels that differ by game, like normalised Atari scores."""
    rng = np.random.default_rng(seed)
    return rng.lognormal(mean=rng.normal(-1.0, 1.0, games), sigma=0.4, size=(runs, games))


def test_aggregates_by_hand() -> None:
    """Games' means 1, 2, 6. Pooled 0 1 1 2 3 11, ⌊6/4⌋ = 1 off each end: (1+1+2+3)/4.
    Gap: shortfalls 1, 0 | 0, 0 | 0, 0 of six runs."""
    x = np.array([[0.0, 1.0, 1.0], [2.0, 3.0, 11.0]])
    assert float(aggregate.mean(x)) == pytest.approx(3.0)
    assert float(aggregate.median(x)) == pytest.approx(2.0)
    assert float(aggregate.iqm(x)) == pytest.approx(7 / 4)
    assert float(aggregate.optimality_gap(x)) == pytest.approx(1 / 6)


def test_ragged_by_hand() -> None:
    """Means 2, 5; the third game has no run. Pooled 0 2 4 5: one off each end leaves 2, 4. Gap (1/3 + 0) / 2."""
    x, games = aggregate.as_array({"a": [0.0, 2.0, 4.0], "b": [5.0], "c": []})
    assert games == ("a", "b")
    assert x.shape == (3, 2)
    for array in (x, np.column_stack([x, [NAN] * 3]), x[[2, 0, 1]]):
        assert float(aggregate.mean(array)) == pytest.approx(3.5)
        assert float(aggregate.median(array)) == pytest.approx(3.5)
        assert float(aggregate.iqm(array)) == pytest.approx(3.0)
        assert float(aggregate.optimality_gap(array)) == pytest.approx(1 / 6)


@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 10_000))
def test_iqm_is_scipys_trimmed_mean(runs: int, games: int, seed: int) -> None:
    x = study(runs, games, seed)
    assert float(aggregate.iqm(x)) == pytest.approx(float(scipy.stats.trim_mean(x, 0.25, axis=None)))


def test_intervals_agree_with_scipys_bootstrap() -> None:
    """scipy resamples the rows of each game's column independently when they are passed as separate samples."""
    x = study(runs=5, games=8)
    estimates = aggregate.bootstrap(x, reps=4_000, seed=1)
    width = estimates["mean"].high - estimates["mean"].low
    for name, statistic in aggregate.AGGREGATES.items():

        def on_columns(*columns: Scores, axis: int = -1, statistic: aggregate.Statistic = statistic) -> Scores:
            return statistic(np.moveaxis(np.stack(np.broadcast_arrays(*columns), axis=-1), axis - 1, -2))

        theirs = scipy.stats.bootstrap(
            tuple(x.T),
            on_columns,
            n_resamples=4_000,
            method="percentile",
            rng=np.random.default_rng(2),
        )
        ours = estimates[name]
        assert ours.value == pytest.approx(float(statistic(x)))
        assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.05 * width)
        assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.05 * width)


def test_ragged_intervals_keep_each_games_number_of_runs() -> None:
    """Of the mean: Var = Σ_g s_g² (n_g - 1) / n_g² / G², so the interval is about ± 1.96 of its root."""
    rng = np.random.default_rng(3)
    runs = {game: rng.normal(size=n).tolist() for game, n in zip("abcd", (40, 60, 80, 100), strict=True)}
    x, _ = aggregate.as_array(runs)
    estimate = aggregate.bootstrap(x, reps=10_000)["mean"]
    deviation = math.sqrt(sum(np.var(values) / len(values) for values in runs.values())) / 4
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * deviation, rel=0.04)
    assert estimate.low < estimate.value < estimate.high


def test_blocks_do_not_change_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    x = study(5, 4)
    whole = aggregate.bootstrap(x, reps=500)
    monkeypatch.setattr(aggregate, "_BLOCK", 5 * 4 * 7)
    assert aggregate.bootstrap(x, reps=500) == whole
    assert aggregate.bootstrap(x, reps=500, seed=1) != whole


def test_one_run_has_no_interval() -> None:
    x = np.array([[0.5, 1.0], [NAN, 2.0]])
    for estimate in aggregate.bootstrap(x, reps=10).values():
        assert math.isfinite(estimate.value)
        assert math.isnan(estimate.low)
        assert math.isnan(estimate.high)
    profile = aggregate.performance_profile(x, np.array([0.0, 0.7]), reps=10)
    assert profile.share.tolist() == [1.0, 0.5]
    assert np.isnan(profile.low).all()
    assert math.isnan(aggregate.probability_of_improvement(x, x + 1, reps=10).low)


def test_performance_profile_by_hand() -> None:
    """Above 1 strictly: of game a 1 of 3 runs, of b 1 of 2: (1/3 + 1/2) / 2."""
    x, _ = aggregate.as_array({"a": [0.0, 1.0, 2.0], "b": [0.5, 3.0]})
    profile = aggregate.performance_profile(x, np.array([-1.0, 1.0, 3.0]), reps=200)
    assert profile.share.tolist() == pytest.approx([1.0, 5 / 12, 0.0])
    assert (profile.low <= profile.share).all()
    assert (profile.share <= profile.high).all()


def test_performance_profile_band_agrees_with_scipy() -> None:
    x = study(6, 5, seed=4)
    profile = aggregate.performance_profile(x, np.array([0.3]), reps=5_000)

    def share(*columns: Scores, axis: int = -1) -> Scores:
        above: Scores = np.mean([(column > 0.3).mean(axis=axis) for column in columns], axis=0)
        return above

    theirs = scipy.stats.bootstrap(
        tuple(x.T), share, n_resamples=5_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert float(profile.low[0]) == pytest.approx(theirs.low, abs=1 / 30)  # one run of thirty
    assert float(profile.high[0]) == pytest.approx(theirs.high, abs=1 / 30)


def test_probability_of_improvement_is_mann_whitney() -> None:
    x, y = study(5, 6, seed=1).round(1), study(7, 6, seed=2).round(1)  # rounded: with ties
    expected = [
        scipy.stats.mannwhitneyu(x[:, g], y[:, g]).statistic / (len(x) * len(y)) for g in range(6)
    ]  # U / (n m) per game
    assert aggregate.probability_of_improvement(x, y, reps=10).value == pytest.approx(np.mean(expected))


def test_probability_of_improvement_interval_agrees_with_scipys_bootstrap() -> None:
    x, y = study(8, 1, seed=1), study(9, 1, seed=1)[:, ::-1] * 0.9

    def probability(a: Scores, b: Scores, axis: int = -1) -> Scores:
        wins: Scores = (a[..., :, None] > b[..., None, :]).mean(axis=(-2, -1))
        return wins

    theirs = scipy.stats.bootstrap(
        (x[:, 0], y[:, 0]), probability, n_resamples=5_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    ours = aggregate.probability_of_improvement(x, y, reps=5_000)
    assert ours.low == pytest.approx(theirs.low, abs=0.03)
    assert ours.high == pytest.approx(theirs.high, abs=0.03)


def test_probability_of_improvement_extremes_and_missing_games() -> None:
    x = np.array([[2.0, 5.0, NAN], [3.0, 5.0, NAN]])
    y = np.array([[1.0, NAN, 9.0], [1.0, NAN, 9.0]])
    assert aggregate.probability_of_improvement(x, y, reps=50) == (1.0, 1.0, 1.0)
    assert aggregate.probability_of_improvement(x, x, reps=50).value == 0.5
    published = np.array([[2.5, 5.0, 1.0]])
    estimate = aggregate.probability_of_improvement(x, published, reps=2_000, fixed=True)
    assert estimate == (0.5, 0.25, 0.75)  # game 1: half above; game 2: ties; game 3: not run


def test_errors_say_what_was_expected() -> None:
    with pytest.raises(ConfigError, match=r"\(runs x games\) array, but came with shape \(3,\)"):
        aggregate.mean(np.zeros(3))
    with pytest.raises(ConfigError, match="no run at all"):
        aggregate.bootstrap(np.full((2, 2), NAN))
    with pytest.raises(ConfigError, match="must be finite"):
        aggregate.mean(np.array([[math.inf]]))
    with pytest.raises(ConfigError, match=r"same games as columns.*\(2, 3\) and \(2, 4\)"):
        aggregate.probability_of_improvement(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(ConfigError, match="share no game"):
        aggregate.probability_of_improvement(np.array([[1.0, NAN]]), np.array([[NAN, 1.0]]))
    with pytest.raises(ConfigError, match="at least 1 replicate"):
        aggregate.bootstrap(np.zeros((2, 2)), reps=0)
    with pytest.raises(ConfigError, match="strictly between 0 and 1, but is 95"):
        aggregate.bootstrap(np.zeros((2, 2)), confidence=95)
