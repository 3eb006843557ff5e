"""The t interval against scipy, and why it was chosen."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from twm.config import ConfigError
from twm.intervals import mean_interval, t_quantile


def test_mean_interval_is_students_t() -> None:
    scores = [3.0, 7.0, 4.0, 9.0, 2.0]
    estimate = mean_interval(scores)
    low, high = scipy.stats.t.interval(0.95, 4, loc=np.mean(scores), scale=scipy.stats.sem(scores))
    assert estimate == pytest.approx((5.0, low, high))
    single = mean_interval([2.0])
    assert single.value == 2.0
    assert math.isnan(single.low)
    assert mean_interval([1.0, 1.0]) == (1.0, 1.0, 1.0)


def test_t_interval_covers_where_a_bootstrap_of_ten_does_not() -> None:
    """The reason for the choice: 4,000 evaluations of 10 episodes with true mean 0."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4_000, 10))
    half = t_quantile(0.95, 9) * x.std(axis=1, ddof=1) / math.sqrt(10)
    assert np.mean(np.abs(x.mean(axis=1)) < half) == pytest.approx(0.95, abs=0.015)
    means = x[np.arange(4_000)[:, None, None], rng.integers(10, size=(4_000, 300, 10))].mean(axis=2)
    low, high = np.quantile(means, (0.025, 0.975), axis=1)
    assert np.mean((low < 0) & (high > 0)) < 0.925


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 99, 1000])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_t_quantile(freedom: int, confidence: float) -> None:
    expected = scipy.stats.t.ppf((1 + confidence) / 2, freedom)
    assert t_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-9)


def test_errors_say_what_was_expected() -> None:
    with pytest.raises(ConfigError, match="at least one finite score"):
        mean_interval([])
    with pytest.raises(ConfigError, match="degrees of freedom"):
        t_quantile(0.95, 0)
    with pytest.raises(ConfigError, match="strictly between 0 and 1, but is 95"):
        mean_interval([1.0, 2.0], confidence=95)
