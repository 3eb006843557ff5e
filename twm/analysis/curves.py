"""Learning curves over seeds: every run as a thin line, their mean where all of them were evaluated.

A mean over whichever runs happen to have come so far would jump when a run drops out, so it is only drawn over
the whole group. Its band is the 95 % t interval over runs; with a single run it is that of its episodes, which
tells how well each score is measured and nothing about other seeds. Two runs get no band: at one degree of freedom
(t = 12.7) it would fill the panel and say no more than the two lines do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twm.analysis import style
from twm.analysis.runs import RunRecord
from twm.analysis.variants import Variant
from twm.intervals import mean_interval
from twm.lab import scores

Array = npt.NDArray[np.float64]


class Line(NamedTuple):
    """Scores y after x interactions, with bounds (NaN where unknown)."""

    x: Array
    y: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Series:
    """One method on one environment: its runs, and their mean (empty where they share no evaluation)."""

    label: str
    runs: tuple[Line, ...]
    mean: Line


@dataclass(frozen=True)
class Panel:
    """One environment: series, level lines (random, optimum) and published points."""

    title: str
    unit: str
    series: tuple[Series, ...]
    levels: Mapping[str, float] = field(default_factory=dict)
    points: Mapping[str, tuple[Array, Array]] = field(default_factory=dict)


def panel(env: str, variants: Mapping[str, Variant], *, published: bool = True) -> Panel:
    """The curves of {label: variant} on ``env``: normalised for a benchmark game, as scored for any other."""
    benchmark = env in scores.GAMES
    series = tuple(series_of(label, variant.on(env), env if benchmark else None) for label, variant in variants.items())
    if not benchmark:
        runs = [run for variant in variants.values() for run in variant.on(env)]
        return Panel(env, "score", series, levels=_levels(runs))
    points = {}
    last = max((line.x.max() for each in series for line in each.runs if len(line.x)), default=0.0)
    counts = [count for count in scores.CHECKPOINTS if count <= last]
    if published and counts:
        values = [scores.normalise(env, scores.published_at(count)[env]) for count in counts]
        points["TWM (published)"] = (np.array(counts, dtype=np.float64), np.array(values))
    return Panel(env, "human-normalised score", series, levels={"random policy": 0.0}, points=points)


def _levels(runs: Sequence[RunRecord]) -> dict[str, float]:
    levels = {}
    for name, attribute in (("random policy", "random_mean"), ("optimum", "optimal_return")):
        values = [value for run in runs if (value := getattr(run, attribute)) is not None]
        if values:
            levels[name] = float(np.mean(values))
    return levels


def series_of(label: str, runs: Sequence[RunRecord], game: str | None = None) -> Series:
    """The runs' evaluations, normalised if a benchmark ``game`` is given, and their mean with its band."""
    lines = tuple(_line(run, game) for run in runs if run.evaluations)
    if len(lines) == len(runs) == 1:
        return Series(label, lines, lines[0])
    # All runs of the group count, also one without any evaluation: then there is no mean yet.
    shared = sorted(set.intersection(*(set(line.x) for line in lines))) if len(lines) == len(runs) and lines else []
    estimates = [mean_interval([float(line.y[line.x == x][0]) for line in lines]) for x in shared]
    columns = np.array(estimates, dtype=np.float64).reshape(-1, 3).T
    if len(lines) == 2:
        columns[1:] = np.nan
    return Series(label, lines, Line(np.array(shared, dtype=np.float64), *columns))


def _line(run: RunRecord, game: str | None) -> Line:
    columns = np.array([each[:4] for each in run.evaluations], dtype=np.float64).T
    if game is not None:
        columns[1:] = [[scores.normalise(game, value) for value in row] for row in columns[1:]]
    return Line(*columns)


# --------------------------------------------------------------------------------------------------
# Drawing


def curves_figure(panels: Sequence[Panel]) -> Figure:
    """One panel per environment, a shared legend below."""
    if not panels:
        return style.message("no evaluations to draw")
    columns = 2 if len(panels) == 4 else min(len(panels), 3 if len(panels) <= 9 else 4)
    rows = math.ceil(len(panels) / columns)
    labels = list(dict.fromkeys(series.label for panel in panels for series in panel.series))
    figure = style.new_figure(max(4.2 * columns, 6.4), 3.1 * rows + 0.3 * math.ceil(len(labels) / 2) + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    handles: dict[str, Artist] = {}
    same_unit = len({each.unit for each in panels}) == 1
    for index, (ax, each) in enumerate(zip(axes, panels, strict=False)):
        handles |= _draw(ax, each, labels)
        if index % columns == 0 or not same_unit:
            ax.set_ylabel(each.unit)
        if index + columns >= len(panels):
            ax.set_xlabel("interactions")
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    handles = {label: handles[label] for label in dict.fromkeys([*labels, *handles])}  # ours before references
    longest = max(map(len, handles), default=0)
    columns = max(1, min(len(handles), int(figure.get_figwidth() * 11 / (longest + 9))))  # about 11 letters an inch
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=3.5,
    )
    return figure


def _draw(ax: Axes, panel: Panel, labels: Sequence[str]) -> dict[str, Artist]:
    """Draw a panel and return {label: handle} for the shared legend."""
    handles: dict[str, Artist] = {}
    for series in panel.series:
        index = labels.index(series.label)
        colour = style.PALETTE[index % len(style.PALETTE)]
        dash = style.LINES[index // len(style.PALETTE) % len(style.LINES)]
        for line in series.runs:
            ax.plot(line.x, line.y, color=colour, linestyle=dash, linewidth=0.8, alpha=0.45)
        mean = series.mean
        (handle,) = ax.plot(mean.x, mean.y, color=colour, linestyle=dash, linewidth=2.0, marker="o", markersize=3)
        ax.fill_between(mean.x, mean.low, mean.high, color=colour, alpha=0.18, linewidth=0)
        handles[series.label] = handle
    for (name, value), dash in zip(panel.levels.items(), (":", "--"), strict=False):
        handles[name] = ax.axhline(value, color=style.GRAY, linestyle=dash, linewidth=1.2)
    for name, (x, y) in panel.points.items():
        handles[name] = ax.scatter(x, y, color=style.GRAY, marker="D", s=24, zorder=3)
    if not any(len(line.x) for series in panel.series for line in series.runs):
        ax.text(0.5, 0.5, "no evaluation yet", ha="center", va="center", transform=ax.transAxes, color=style.GRAY)
    ax.set_title(panel.title, fontsize=11)
    ax.set_xlim(left=0)
    style.in_thousands(ax)
    style.tidy(ax)
    return handles
