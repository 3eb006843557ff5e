"""Statistics over (runs x games) arrays of scores, as Agarwal et al. (2021, "Statistical Precipice") advise.

A score array has one column per game and one row per run; NaN stands for a run that does not exist, so games
may have different numbers of runs, and a game without any is left out. Notation: x_{ig} is run i of game g,
n_g the number of runs, G the number of games that have any, x̄_g = Σ_i x_{ig} / n_g.

    mean            Σ_g x̄_g / G
    median          median over g of x̄_g
    IQM             mean of the middle half of all runs pooled (a game with more runs counts for more)
    optimality gap  Σ_g Σ_i max(0, 1 - x_{ig}) / n_g / G: how far runs fall short of human level

Intervals are percentile intervals of the stratified bootstrap: runs are redrawn with replacement within each
game, never across games. One run says nothing about the spread between runs, so where a game has a single
run the bounds are NaN ("unknown") instead of a width of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twm.config import ConfigError
from twm.intervals import Estimate, mean_interval

__all__ = [
    "AGGREGATES",
    "Estimate",
    "Profile",
    "as_array",
    "bootstrap",
    "has_spread",
    "iqm",
    "mean",
    "mean_interval",
    "median",
    "optimality_gap",
    "performance_profile",
    "probability_of_improvement",
]

Scores = npt.NDArray[np.float64]
Statistic = Callable[[Scores], Scores]

_BLOCK = 4_000_000  # numbers in one block of bootstrap replicates: bounds memory at a few times 32 MB


class Profile(NamedTuple):
    """Performance profile: the share of runs above each threshold, with a pointwise band."""

    thresholds: Scores
    share: Scores
    low: Scores
    high: Scores


# --------------------------------------------------------------------------------------------------
# Score arrays


def as_array(scores: Mapping[str, Sequence[float]]) -> tuple[Scores, tuple[str, ...]]:
    """{game: scores of its runs} as a (runs x games) array, short columns filled up with NaN; and the games."""
    present = {game: runs for game, runs in scores.items() if len(runs) > 0}
    array = np.full((max(map(len, present.values()), default=0), len(present)), np.nan)
    for column, runs in enumerate(present.values()):
        array[: len(runs), column] = runs
    return array, tuple(present)


def _present(x: Scores) -> Scores:
    """The games that have runs; an error where ``x`` is no score array or holds no score at all."""
    if x.ndim < 2:
        raise ConfigError(f"scores must be a (runs x games) array, but came with shape {x.shape}")
    if np.isinf(x).any():
        raise ConfigError("scores must be finite (NaN for a run that does not exist), but some are infinite")
    has_runs = ~np.isnan(x).all(axis=tuple(range(x.ndim - 1)))
    if not has_runs.any():
        raise ConfigError(f"scores hold no run at all (shape {x.shape}): aggregate at least one")
    return x if has_runs.all() else x[..., has_runs]


def _run_mean(x: Scores) -> Scores:
    """x̄_g: (..., runs, games) to (..., games)."""
    exists = ~np.isnan(x)
    averages: Scores = np.where(exists, x, 0.0).sum(axis=-2) / exists.sum(axis=-2)
    return averages


# --------------------------------------------------------------------------------------------------
# Aggregates: (..., runs, games) to (...)


def mean(x: Scores) -> Scores:
    """Mean over games of the mean over runs."""
    result: Scores = _run_mean(_present(x)).mean(axis=-1)
    return result


def median(x: Scores) -> Scores:
    """Median over games of the mean over runs."""
    return np.asarray(np.median(_run_mean(_present(x)), axis=-1))


def iqm(x: Scores) -> Scores:
    """Interquartile mean: all n runs pooled, the ⌊n/4⌋ lowest and highest dropped, the rest averaged."""
    pooled = np.sort(x.reshape(*x.shape[:-2], -1), axis=-1)  # NaN sorts last
    n = (~np.isnan(pooled)).sum(axis=-1, keepdims=True)
    cut, rank = n // 4, np.arange(pooled.shape[-1])
    middle = (rank >= cut) & (rank < n - cut)
    average: Scores = np.where(middle, pooled, 0.0).sum(axis=-1) / middle.sum(axis=-1)
    return average


def optimality_gap(x: Scores, optimum: float = 1.0) -> Scores:
    """Mean shortfall below ``optimum`` (human level); runs above it do not make up for others."""
    return optimum - mean(np.minimum(x, optimum))


AGGREGATES: Mapping[str, Statistic] = {
    "median": median,
    "iqm": iqm,
    "mean": mean,
    "optimality_gap": optimality_gap,
}
"""The paper's four, in the order of its figure."""


# --------------------------------------------------------------------------------------------------
# Stratified bootstrap


def has_spread(x: Scores) -> bool:
    """Whether every game that has runs has at least two, so that an interval means something."""
    return bool(((~np.isnan(_present(x))).sum(axis=-2) >= 2).all())


def _replicates(x: Scores, reps: int, rng: np.random.Generator) -> Iterator[Scores]:
    """Blocks of (some, runs, games): each column redrawn from its own runs, as many as there are."""
    x = np.sort(_present(x), axis=0)  # NaN last: the n_g runs of a game come first
    N, G = x.shape
    n = (~np.isnan(x)).sum(axis=0)  # (G,)
    absent = np.arange(N)[:, None] >= n  # (N, G)
    block = max(1, _BLOCK // (N * G))
    for start in range(0, reps, block):
        rows = (rng.random((min(block, reps - start), N, G)) * n).astype(np.int64)
        drawn = np.take_along_axis(x[None], rows, axis=1)  # (block, N, G)
        drawn[:, absent] = np.nan
        yield drawn


def _bounds(samples: Scores, confidence: float) -> tuple[Scores, Scores]:
    """Percentile interval along the first axis."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(samples, (tail, 1 - tail), axis=0)
    return low, high


def bootstrap(
    x: Scores,
    statistics: Mapping[str, Statistic] = AGGREGATES,
    *,
    reps: int = 10_000,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, Estimate]:
    """Each statistic of ``x`` with its stratified bootstrap interval, all from the same replicates."""
    _check(reps, confidence)
    values = {name: float(statistic(x)) for name, statistic in statistics.items()}
    if not has_spread(x):
        return {name: Estimate(value, math.nan, math.nan) for name, value in values.items()}
    samples: dict[str, list[Scores]] = {name: [] for name in statistics}
    for drawn in _replicates(x, reps, np.random.default_rng(seed)):
        for name, statistic in statistics.items():
            samples[name].append(statistic(drawn))
    estimates = {}
    for name, value in values.items():
        low, high = _bounds(np.concatenate(samples[name]), confidence)
        estimates[name] = Estimate(value, float(low), float(high))
    return estimates


def performance_profile(
    x: Scores, thresholds: Scores, *, reps: int = 2_000, seed: int = 0, confidence: float = 0.95
) -> Profile:
    """Share of runs with a score above τ, each game counting the same: Σ_g #{i : x_{ig} > τ} / n_g / G.

    The band is pointwise. It is NaN where a game has a single run.
    """
    _check(reps, confidence)

    def share(scores: Scores) -> Scores:
        """(..., N, G) to (..., thresholds); one threshold at a time keeps memory flat."""
        exists = ~np.isnan(scores)
        weight = exists / exists.sum(axis=-2, keepdims=True) / scores.shape[-1]
        return np.stack([np.where(scores > tau, weight, 0.0).sum(axis=(-2, -1)) for tau in thresholds], axis=-1)

    value = share(_present(x))
    if not has_spread(x):
        unknown = np.full_like(value, np.nan)
        return Profile(thresholds, value, unknown, unknown)
    samples = np.concatenate([share(drawn) for drawn in _replicates(x, reps, np.random.default_rng(seed))])
    return Profile(thresholds, value, *_bounds(samples, confidence))


def probability_of_improvement(
    x: Scores, y: Scores, *, reps: int = 10_000, seed: int = 0, confidence: float = 0.95, fixed: bool = False
) -> Estimate:
    """How likely a run of x beats a run of y on a game drawn at random (Mann-Whitney U per game, averaged):

        P(X > Y) = 1/G Σ_g 1/(n_g m_g) Σ_i Σ_j ( [x_{ig} > y_{jg}] + ½ [x_{ig} = y_{jg}] )

    Columns are the same games in both; games that one of them lacks are left out. Both sides are redrawn;
    with ``fixed`` only x is, for a y that is a known number per game (a published mean) and not a set of runs.
    Only order within a game matters, so raw scores serve as well as normalised ones.
    """
    _check(reps, confidence)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ConfigError(f"both sides need the same games as columns, but came with shapes {x.shape} and {y.shape}")
    shared = ~np.isnan(x).all(axis=0) & ~np.isnan(y).all(axis=0)
    if not shared.any():
        raise ConfigError("the two sides share no game that both have run: compare runs on the same games")
    rng = np.random.default_rng(seed)
    value, samples = 0.0, np.zeros(reps)
    for x_g, y_g in zip(x[:, shared].T, y[:, shared].T, strict=True):
        x_g, y_g = x_g[~np.isnan(x_g)], y_g[~np.isnan(y_g)]
        wins = (x_g[:, None] > y_g) + 0.5 * (x_g[:, None] == y_g)  # (n, m)
        value += wins.mean()
        # Redrawing runs only changes how often each counts: the average becomes a bilinear form in the counts.
        x_share = _redraw(len(x_g), reps, rng)
        y_share = np.full((1, len(y_g)), 1 / len(y_g)) if fixed else _redraw(len(y_g), reps, rng)
        samples += ((x_share @ wins) * y_share).sum(axis=1)
    games = int(shared.sum())
    if not has_spread(x[:, shared]) or not (fixed or has_spread(y[:, shared])):
        return Estimate(float(value) / games, math.nan, math.nan)
    low, high = _bounds(samples / games, confidence)
    return Estimate(float(value) / games, float(low), float(high))


def _redraw(n: int, reps: int, rng: np.random.Generator) -> Scores:
    """(reps, n): how large a share of a bootstrap sample each of n runs makes up."""
    return rng.multinomial(n, np.full(n, 1 / n), size=reps) / n


def _check(reps: int, confidence: float) -> None:
    if reps < 1:
        raise ConfigError(f"the bootstrap needs at least 1 replicate, but got {reps}")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must lie strictly between 0 and 1, but is {confidence}")
