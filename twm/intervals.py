"""The mean of a few scores and how sure it is: one definition for evaluation, tables and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twm.config import ConfigError


class Estimate(NamedTuple):
    """A value with its 95 % interval (or another, as asked); bounds are NaN where they cannot be known."""

    value: float
    low: float
    high: float


def mean_interval(scores: Sequence[float] | npt.NDArray[np.float64], confidence: float = 0.95) -> Estimate:
    """Mean of independent scores (the episodes of one evaluation, or the seeds of one game) with a t interval:

        x̄ ± t_{n-1} s / √n,    s² = Σ (x_i - x̄)² / (n - 1)

    Student's t rather than a bootstrap: with the 10 episodes of an evaluation during training a percentile
    bootstrap covers the mean in about 90 % of cases where it promises 95 %, and t needs no random numbers, so
    the same scores always give the same bounds. Bounds may lie beyond what a game can score. A single score
    has no spread: its bounds are NaN.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise ConfigError(f"a mean needs at least one finite score in one dimension, but got {scores!r}")
    n, centre = len(values), float(values.mean())
    if n == 1:
        return Estimate(centre, math.nan, math.nan)
    half = t_quantile(confidence, n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    return Estimate(centre, centre - half, centre + half)


def t_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| < t) = ``confidence`` for Student's T with whole degrees of freedom.

    P(|T| < √ν tan θ) is a finite sum in sin θ and cos θ (Abramowitz and Stegun 26.7.3, 26.7.4) that grows with
    θ on (0, π/2): bisection finds the θ, without a dependency on scipy.
    """
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence must lie strictly between 0 and 1, but is {confidence}")
    if freedom < 1:
        raise ConfigError(f"degrees of freedom must be at least 1, but are {freedom}")
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        theta = (low + high) / 2
        low, high = (theta, high) if _t_inside(theta, freedom) < confidence else (low, theta)
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _t_inside(theta: float, freedom: int) -> float:
    """P(|T| < √ν tan θ) for ν = ``freedom``."""
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = freedom % 2 == 1
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (theta + sine * total) if odd else sine * total
