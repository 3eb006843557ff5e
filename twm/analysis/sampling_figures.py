"""The paper's figure "sampling": visits of each entry, and the share of training time spent up to it.

From a simulation of the paper's schedule (:func:`paper_visits`), or from the counts that a run keeps
(:func:`run_visits`), beside what its own schedule would give under other temperatures.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from twm.analysis import style
from twm.analysis.sampling import Visits, first_half_share, half_time_entry, share_of_time, simulate
from twm.analysis.tables import Row
from twm.config import Config

TEMPERATURES = (5.0, 20.0, 100.0, math.inf)
"""Shown for the paper's schedule: its own τ = 20, one on each side, and uniform sampling."""


def name_of(temperature: float) -> str:
    """A temperature as a key of tables and JSON: "20", "uniform"."""
    return "uniform" if math.isinf(temperature) else f"{temperature:g}"


def label_of(temperature: float) -> str:
    """A temperature as a person reads it."""
    return "uniform (τ = ∞)" if math.isinf(temperature) else f"τ = {temperature:g}"


def paper_visits(temperatures: Sequence[float] = TEMPERATURES) -> dict[str, Visits]:
    """{temperature: visits} at the end of the paper's schedule, each simulated in a process of its own."""
    workers = min(len(temperatures), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if workers < 2:
        return {name_of(tau): simulate(tau) for tau in temperatures}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return dict(zip(map(name_of, temperatures), pool.map(simulate, temperatures), strict=True))


class RunVisits(NamedTuple):
    """How often a run has drawn each entry, and after how many updates."""

    visits: npt.NDArray[np.int32]
    updates: int


def run_visits(run: Path) -> RunVisits:
    """The counts in the newest checkpoint of a run. Pretraining does not count visits."""
    from twm.train import checkpoint
    from twm.train.files import RunError
    from twm.train.rundir import RunDir

    loaded = checkpoint.load_latest(RunDir.open(run).checkpoints, prefix=("replay/", "counters/"))
    if loaded is None:
        raise RunError(f"{run} has no checkpoint yet: wait for the run to save one")
    counters, replay = loaded.state["counters"], loaded.state["replay"]
    return RunVisits(np.asarray(replay["visits"], np.int32), int(counters["updates"]))


def same_schedule(config: Config, found: RunVisits, temperature: float) -> Visits:
    """Visits that sampling with ``temperature`` would have given to a run that has come as far as ``found``."""
    return simulate(
        temperature,
        interactions=len(found.visits),
        prefill=config.train.prefill,
        updates=found.updates,
        pretraining=0,
        batch_size=config.world_model.batch_size,
        sequence_length=config.world_model.sequence_length,
        seed=config.seed,
    )


# --------------------------------------------------------------------------------------------------
# Numbers and pictures


def halves(visits: Mapping[str, Visits]) -> dict[str, dict[str, float]]:
    """For each way of sampling: the entry up to which half of the time falls, and the first half's share."""
    return {
        name: {"half_time_entry": half_time_entry(counts), "first_half_share": first_half_share(counts)}
        for name, counts in visits.items()
    }


def sampling_table(visits: Mapping[str, Visits], bins: int = 100) -> list[Row]:
    """Mean visits and share of time, neighbouring entries in up to ``bins`` groups of at least 25."""
    size = max(map(len, visits.values()))
    edges = np.linspace(0, size, max(1, min(bins, size // 25)) + 1).round().astype(int)
    shares = {name: np.concatenate([[0.0], share_of_time(counts)]) for name, counts in visits.items()}
    rows: list[Row] = []
    for first, last in zip(edges[:-1], edges[1:], strict=True):
        row: Row = {"Entries up to": int(last)}
        row |= {f"{name}: visits": float(counts[first:last].mean()) for name, counts in visits.items()}
        row |= {f"{name}: share of time": float(shares[name][last]) for name in visits}
        rows.append(row)
    return rows


def sampling_figure(visits: Mapping[str, Visits], bins: int = 200) -> Figure:
    """{label: visits}. Left: visits of an entry (mean over neighbours). Right: share of the training time up to an
    entry, with a dot where half of it is reached. Entries in the order they were experienced."""
    if not visits:
        return style.message("no visits to draw")
    figure = style.new_figure(11.0, 4.4)
    left, right = figure.subplots(1, 2)
    for index, (name, counts) in enumerate(visits.items()):
        look = {"color": style.PALETTE[index % len(style.PALETTE)], "linestyle": style.LINES[index % len(style.LINES)]}
        rows = sampling_table({"": counts}, bins)
        x = [row["Entries up to"] for row in rows]
        left.plot(x, [row[": visits"] for row in rows], label=name, linewidth=1.8, **look)
        right.plot([0, *x], [0, *(row[": share of time"] for row in rows)], linewidth=1.8, **look)
        right.plot(half_time_entry(counts), 0.5, "o", color=look["color"], markersize=6)
    right.axhline(0.5, color=style.GRAY, linewidth=0.9, linestyle=":")
    left.set_ylim(bottom=0)
    left.set_ylabel("visits of an entry")
    right.set_ylabel("share of training time up to an entry")
    for ax in (left, right):
        ax.set_xlabel("entry, in the order of experience")
        ax.set_xlim(left=0)
        style.in_thousands(ax)
        style.tidy(ax)
    right.set_ylim(0, 1.02)
    figure.legend(loc="outside lower center", ncols=len(visits), frameon=False, handlelength=3.5)
    return figure
