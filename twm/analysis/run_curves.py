"""Curves of one run from its metrics.jsonl: scores with interval, losses, entropies, speed.

Everything is read from the records; a key that a record lacks is a gap in the curve, and a curve without any point is
not drawn. Records of pretraining all carry the same number of interactions, so they have a figure of their own, over
the updates of each part.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twm.analysis import style
from twm.analysis.runs import RunRecord
from twm.analysis.tables import Row

Record = Mapping[str, Any]
Numbers = npt.NDArray[np.float64]

PRETRAIN_KEYS = ("pretrain/observation", "pretrain/dynamics", "pretrain/policy")
"""Updates of a part that has been pretrained so far."""

LOSSES = {
    "loss/decoder": "Decoder: -ln p(o | z)",
    "loss/latent": "Next latent state: cross-entropy",
    "loss/reward": "Reward",
    "loss/discount": "Discount",
    "loss/consistency": "Consistency",
    "loss/policy_critic": "Critic",
    "loss/policy_actor": "Actor",
}
ENTROPIES = {
    "policy/entropy": "Policy: H(π) / ln m",
    "loss/policy_entropy": "Policy: hinge below the threshold",
    "loss/entropy": "Encoder: entropy regulariser",
}
DREAMS = {
    "policy/value": "Value at imagined states",
    "policy/dream_return": "Return of dreams",
    "dream/reward": "Imagined reward a step",
    "dream/ended": "Imagined steps that end",
}


class Curve(NamedTuple):
    """y over x, e.g. a loss over interactions."""

    x: Numbers
    y: Numbers


def curve(records: Iterable[Record], key: str, over: str = "interactions") -> Curve:
    """The records that hold finite numbers under both keys."""
    points = [(record.get(over), record.get(key)) for record in records]
    found = [(x, y) for x, y in points if _finite(x) and _finite(y)]
    columns = np.array(found, dtype=np.float64).reshape(-1, 2)
    return Curve(columns[:, 0], columns[:, 1])


def main_phase(records: Iterable[Record]) -> list[Record]:
    """The records behind pretraining, in which all parts learn together."""
    return [record for record in records if not any(key in record for key in PRETRAIN_KEYS)]


def pretraining(records: Iterable[Record]) -> list[Record]:
    """The records of pretraining."""
    return [record for record in records if any(key in record for key in PRETRAIN_KEYS)]


def speed(records: Sequence[Record], key: str = "interactions") -> Curve:
    """How many of ``key`` a second between one record and the next: Δkey / Δ(time/elapsed), at the later one's
    interactions. Where the clock went back (a resumed run that repeats a part) there is no point."""
    x, y = [], []
    timed = [r for r in records if all(_finite(r.get(k)) for k in ("interactions", "time/elapsed", key))]
    for before, after in zip(timed, timed[1:], strict=False):
        seconds, done = after["time/elapsed"] - before["time/elapsed"], after[key] - before[key]
        if seconds > 0 and done > 0:
            x.append(after["interactions"])
            y.append(done / seconds)
    return Curve(np.array(x, dtype=np.float64), np.array(y, dtype=np.float64))


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def metrics_table(records: Iterable[Record], keys: Sequence[str]) -> list[Row]:
    """The numbers behind a figure: the records that hold any of ``keys``."""
    rows = []
    for record in records:
        values = {key: record[key] for key in keys if _finite(record.get(key))}
        if values:
            rows.append({"interactions": record.get("interactions"), "updates": record.get("updates"), **values})
    return rows


# --------------------------------------------------------------------------------------------------
# Figures


def score_figure(run: RunRecord, records: Sequence[Record]) -> Figure:
    """Evaluations with their 95 % interval, the games played while training, and what to compare them with."""
    figure = style.new_figure(8.0, 4.2)
    ax = figure.subplots()
    played = curve(records, "episode/score")
    if len(played.x):
        ax.plot(*played, ".", color=style.PALETTE[5], markersize=4, alpha=0.7, label="games while training (mean)")
    if run.evaluations:
        x, mean, low, high = np.array([each[:4] for each in run.evaluations], dtype=np.float64).T
        colour = style.PALETTE[0]
        ax.plot(x, mean, "o-", color=colour, linewidth=2, markersize=4, label="evaluation, 95 % interval")
        ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        ax.errorbar(x[-1:], mean[-1:], [mean[-1:] - low[-1:], high[-1:] - mean[-1:]], color=colour, capsize=4)
    for name, value, dash in (("random policy", run.random_mean, ":"), ("best possible", run.optimal_return, "--")):
        if value is not None:
            ax.axhline(value, color=style.GRAY, linestyle=dash, linewidth=1.3, label=name)
    if not ax.has_data():
        return style.message("no scores yet")
    ax.set_xlabel("interactions")
    ax.set_ylabel("score")
    ax.set_xlim(left=0)
    style.in_thousands(ax)
    style.tidy(ax)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def grid_figure(
    curves: Mapping[str, Curve], *, xlabel: str = "interactions", smooth: int = 0, exact: Container[str] = ()
) -> Figure:
    """Small panels, one per curve, those without points left out; a running mean over ``smooth`` points in front,
    except for the curves in ``exact``."""
    shown = {title: each for title, each in curves.items() if len(each.x)}
    if not shown:
        return style.message("nothing recorded yet")
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = style.new_figure(max(4.0 * columns, 6.0), 2.5 * rows + 0.3)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for index, (ax, (title, each)) in enumerate(zip(axes, shown.items(), strict=False)):
        _draw(ax, each, 0 if title in exact else smooth)
        ax.set_title(title, fontsize=10)
        if index + columns >= len(shown):
            ax.set_xlabel(xlabel)
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    return figure


def _draw(ax: Axes, curve: Curve, smooth: int) -> None:
    colour = style.PALETTE[0]
    if smooth > 1 and len(curve.x) >= 3 * smooth:
        ax.plot(*curve, color=colour, linewidth=0.8, alpha=0.35)
        mean = np.convolve(curve.y, np.full(smooth, 1 / smooth), mode="valid")
        middle = smooth // 2  # a mean belongs to the middle of its points: it must not lag behind
        ax.plot(curve.x[middle : middle + len(mean)], mean, color=colour, linewidth=1.8)
    else:
        ax.plot(*curve, color=colour, linewidth=1.5, marker="o" if len(curve.x) < 30 else None, markersize=3)
    style.in_thousands(ax)
    style.tidy(ax)


def losses_figure(records: Sequence[Record]) -> Figure:
    """The terms of the loss over interactions."""
    return _figure_of(main_phase(records), LOSSES)


def entropies_figure(records: Sequence[Record], threshold: float | None = None) -> Figure:
    """Entropy of the policy, with the threshold below which its loss sets in, and the two regularisers."""
    figure = _figure_of(main_phase(records), ENTROPIES)
    for ax in figure.axes:
        if threshold is not None and ax.get_title() == ENTROPIES["policy/entropy"]:
            ax.axhline(threshold, color=style.PALETTE[1], linestyle="--", linewidth=1.2)
            ax.annotate(
                "threshold Γ",
                (1, threshold),
                xycoords=("axes fraction", "data"),
                xytext=(-3, 3),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color=style.PALETTE[1],
            )
    return figure


def dreams_figure(records: Sequence[Record]) -> Figure:
    """What the policy meets in its dreams."""
    return _figure_of(main_phase(records), DREAMS)


def pretraining_figure(records: Sequence[Record]) -> Figure:
    """The losses of each part's pretraining over its updates."""
    curves: dict[str, Curve] = {}
    terms = (("loss/decoder",), ("loss/latent", "loss/reward", "loss/discount"), ("loss/policy_critic",))
    for part, keys in zip(PRETRAIN_KEYS, terms, strict=True):
        for key in keys:
            curves[LOSSES[key]] = curve(records, key, over=part)
    return grid_figure(curves, xlabel="updates of the part")


def speed_figure(records: Sequence[Record]) -> Figure:
    """Interactions and updates a second in the main phase; an evaluation counts to the interval that it falls into."""
    learning = [r for r in main_phase(records) if _finite(r.get("updates")) and r["updates"] > 0]
    curves = {
        "Interactions a second": speed(learning),
        "Updates a second": speed(learning, "updates"),
        "Hours so far": _scaled(curve(records, "time/elapsed"), 1 / 3600),
    }
    return grid_figure(curves, smooth=5, exact={"Hours so far"})


def _scaled(curve: Curve, factor: float) -> Curve:
    return Curve(curve.x, curve.y * factor)


def _figure_of(records: Sequence[Record], titles: Mapping[str, str]) -> Figure:
    return grid_figure({title: curve(records, key) for key, title in titles.items()}, smooth=5)
