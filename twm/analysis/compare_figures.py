"""Figures over many runs: aggregates with intervals, performance profiles, probability of improvement."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from twm.analysis import style
from twm.intervals import Estimate
from twm.lab.aggregate import Profile

_DASHES = ("--", ":", "-.", (0, (6, 3)), (0, (1, 3)), (0, (6, 2, 1, 2, 1, 2)))  # TWM at its end and five checkpoints
METRICS = {"median": "Median ↑", "iqm": "IQM ↑", "mean": "Mean ↑", "optimality_gap": "Optimality gap ↓"}


class Improvement(NamedTuple):
    """P(a run of ``better`` scores above ``other``) over the games both have."""

    better: str
    other: str
    games: int
    estimate: Estimate
    published: bool = False  # other is a published mean, not a set of runs


def aggregates_figure(
    estimates: Mapping[str, Mapping[str, Estimate]], points: Mapping[str, Mapping[str, float]], games: int
) -> Figure:
    """The paper's figure of aggregates: ours with 95 % intervals, published point values as hollow diamonds."""
    if not estimates:
        return style.message("no finished runs on the benchmark's games")
    labels = [*estimates, *points]
    figure = style.new_figure(11, 1.6 + 0.34 * len(labels) + 0.16 * sum(len(_wrap(label)) // 30 for label in labels))
    for ax, (metric, title) in zip(figure.subplots(1, 4, sharey=True), METRICS.items(), strict=True):
        for row, label in enumerate(labels):
            colour = style.PALETTE[row % len(style.PALETTE)] if label in estimates else style.GRAY
            if label in estimates and metric in estimates[label]:
                _interval(ax, row, estimates[label][metric], colour)
            elif label in points and metric in points[label]:
                ax.plot(points[label][metric], row, marker="D", markersize=6, color=colour, markerfacecolor="white")
        if not any(metric in numbers for numbers in points.values()):
            y = len(estimates) + (len(points) - 1) / 2
            ax.text(
                0.5, y, "not published", transform=ax.get_yaxis_transform(), ha="center", va="center", color=style.GRAY
            )
        ax.set_title(title, fontsize=11)
        ax.set_xlabel("human-normalised score")
        _set_xlim(ax)
        style.tidy(ax, grid="x")
    ax.set_yticks(range(len(labels)), [_wrap(label) for label in labels])
    ax.set_ylim(len(labels) - 0.4, -0.6)
    over = "all 26 games" if games == 26 else f"the {games} of 26 games we have" if games > 1 else "one game only"
    known = any(not math.isnan(estimate.low) for values in estimates.values() for estimate in values.values())
    bars = "Bars: 95 % stratified bootstrap over runs" if known else "No intervals: they take two runs of every game"
    figure.suptitle(f"Over {over}. {bars}. Diamonds: published values.", fontsize=10)
    return figure


def profiles_figure(profiles: Mapping[str, Profile], references: Mapping[str, Profile], games: int) -> Figure:
    """Share of runs above each normalised score, with pointwise bands; published per-game means as thin steps."""
    if not profiles:
        return style.message("no finished runs on the benchmark's games")
    figure = style.new_figure(7.5, 4.6)
    ax = figure.subplots()
    for index, (label, profile) in enumerate(profiles.items()):
        colour = style.PALETTE[index % len(style.PALETTE)]
        ax.step(profile.thresholds, profile.share, where="post", color=colour, linewidth=2, label=_wrap(label))
        ax.fill_between(
            profile.thresholds, profile.low, profile.high, step="post", color=colour, alpha=0.18, linewidth=0
        )
    for (label, profile), dash in zip(references.items(), _DASHES, strict=False):
        ax.step(
            profile.thresholds,
            profile.share,
            where="post",
            color=style.GRAY,
            linestyle=dash,
            linewidth=1.2,
            label=label,
        )
    ax.set_xlabel("human-normalised score τ")
    ax.set_ylabel(f"share of runs with score > τ ({games} game{'s' if games > 1 else ''})")
    ax.set_ylim(-0.02, 1.02)
    style.tidy(ax, grid="both")
    ax.legend(frameon=False, fontsize=9)
    return figure


def improvement_figure(rows: Sequence[Improvement]) -> Figure:
    """One line per comparison; right of ½ the first one is better more often than not. Gray: published means."""
    if not rows:
        return style.message("nothing to compare: no two methods with runs on the same game")
    games = [f"({row.games}\u00a0game{'s' if row.games > 1 else ''})" for row in rows]
    labels = [_wrap(f"{row.better}  >  {row.other}  {count}", 56) for row, count in zip(rows, games, strict=True)]
    lines = 1 + max(label.count("\n") for label in labels)
    figure = style.new_figure(9.5, 1.2 + max(0.38, 0.17 * lines + 0.12) * len(rows))
    ax = figure.subplots()
    for index, row in enumerate(rows):
        _interval(ax, index, row.estimate, style.GRAY if row.published else style.PALETTE[0])
    ax.axvline(0.5, color="black", linewidth=1, linestyle="--")
    ax.set_yticks(range(len(rows)), labels, fontsize=9)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(-0.03, 1.03)
    known = any(not math.isnan(row.estimate.low) for row in rows)
    ax.set_xlabel("probability of improvement" + (", 95 % interval" if known else " (too few runs for intervals)"))
    style.tidy(ax, grid="x")
    return figure


def _interval(ax: Axes, row: int, estimate: Estimate, colour: str) -> None:
    """A dot, and a bar where the interval is known."""
    if not math.isnan(estimate.low):
        ax.barh(row, estimate.high - estimate.low, left=estimate.low, height=0.5, color=colour, alpha=0.3)
    ax.plot(estimate.value, row, marker="o", markersize=6, color=colour)


def _set_xlim(ax: Axes) -> None:
    """Room beside the data (bars that end at the frame look cut off), and at least a fifth of human level across."""
    ax.use_sticky_edges = False
    ax.margins(x=0.12)
    low, high = ax.get_xlim()
    if high - low < 0.2:
        ax.set_xlim((low + high) / 2 - 0.1, (low + high) / 2 + 0.1)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))


def _wrap(label: str, width: int = 34) -> str:
    return "\n".join(textwrap.wrap(label, width, break_on_hyphens=False))
