"""Tables as lists of rows (dicts), ready for CSV: ours beside the published ones.

An empty cell (None) means that there is no such number: a game that was not played, a run that has not come
so far, a method that was never measured there. Nothing is filled in.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twm.analysis.runs import RunRecord
from twm.analysis.variants import Variant, at
from twm.intervals import Estimate, mean_interval
from twm.lab import scores
from twm.lab.aggregate import Profile

Cell = str | int | float | bool | None
Row = dict[str, Cell]


def write_csv(rows: Sequence[Row], path: Path) -> Path:
    """Rows to a file; columns in the order in which they first occur, numbers to nine digits."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({column: _cell(value) for column, value in row.items()})
    return path


def _cell(value: Cell) -> Cell:
    if isinstance(value, float):
        return None if math.isnan(value) else f"{value:.9g}"
    return value


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


# --------------------------------------------------------------------------------------------------
# Ours


def run_table(variants: Sequence[Variant]) -> list[Row]:
    """One row per run, finished or not."""
    return [_run_row(variant.label, run) for variant in variants for run in variant.runs]


def _run_row(label: str, run: RunRecord) -> Row:
    final = run.final
    return {
        "Run": run.name,
        "Environment": run.env,
        "Variant": label,
        "Seed": run.seed,
        "Interactions": run.interactions,
        "State": run.state,
        "Score": final.mean if final else None,
        "Low": _known(final.low) if final else None,
        "High": _known(final.high) if final else None,
        "Episodes": final.episodes if final else None,
        "Random": run.random_mean,
        "Optimum": run.optimal_return,
        "Normalised": scores.normalise(run.env, final.mean) if final and run.env in scores.GAMES else None,
        "Missing": "; ".join(run.notes),
    }


def environment_table(variants: Sequence[Variant]) -> list[Row]:
    """One row per environment and variant: mean over finished runs with a t interval, beside what is known of it.

    With one run the interval is that of its episodes, and the row says so: it tells how well the score is
    measured, not how much runs differ.
    """
    rows: list[Row] = []
    for env in sorted({env for variant in variants for env in variant.envs}):
        for variant in variants:
            finished = [run for run in variant.on(env) if run.final is not None]
            if not finished:
                continue
            estimate = mean_interval(variant.final_scores(env))
            single = finished[0].final if len(finished) == 1 else None
            low, high = (single.low, single.high) if single else (estimate.low, estimate.high)
            random, optimum = _shared(finished, "random_mean"), _shared(finished, "optimal_return")
            rows.append(
                {
                    "Environment": env,
                    "Variant": variant.label,
                    "Runs": len(finished),
                    "Interactions": variant.interactions,
                    "Score": estimate.value,
                    "Low": _known(low),
                    "High": _known(high),
                    "Interval over": "episodes" if single else "runs",
                    "Random": random,
                    "Optimum": optimum,
                    "Share of optimum": _share(estimate.value, random, optimum),
                }
            )
    return rows


def _shared(runs: Sequence[RunRecord], name: str) -> float | None:
    """Mean of a measured reference over the runs that have it."""
    values = [value for run in runs if (value := getattr(run, name)) is not None]
    return statistics.fmean(values) if values else None


def _share(score: float, random: float | None, optimum: float | None) -> float | None:
    """(score - random) / (optimum - random): 0 is the random policy, 1 the best possible."""
    if random is None or optimum is None or optimum <= random:
        return None
    return (score - random) / (optimum - random)


# --------------------------------------------------------------------------------------------------
# The paper's tables


def result_table(variants: Sequence[Variant]) -> list[Row]:
    """The paper's result table with ours behind it: 26 games, then normalised mean and median.

    Means over part of the games are compared over that part: for each set of games that one of our variants
    covers there is a pair of rows, in which every column is taken over just these games.
    """
    ours = {variant.label: variant for variant in variants if variant.normalised()}
    columns: dict[str, Mapping[str, float]] = {name: scores.published(name) for name in scores.REFERENCES}
    columns |= {_published_name(name): scores.published(name) for name in scores.METHODS}
    columns |= {
        f"TWM at {_thousands(count)} (published)": scores.published_at(count) for count in _checkpoints(variants)
    }
    columns |= {label: _means(variant) for label, variant in ours.items()}
    rows: list[Row] = []
    for game in scores.GAMES:
        row: Row = {"Game": game} | {name: column.get(game) for name, column in columns.items()}
        for label, variant in ours.items():
            finals = variant.final_scores(game)
            estimate = mean_interval(finals) if finals else Estimate(math.nan, math.nan, math.nan)
            row |= {f"{label}: runs": len(finals), f"{label}: low": _known(estimate.low)}
            row |= {f"{label}: high": _known(estimate.high)}
        rows.append(row)
    for games in _game_sets(ours.values()):
        where = "26 games" if len(games) == len(scores.GAMES) else f"{len(games)} of 26 games: {', '.join(games)}"
        for title, function in (("Normalised mean", statistics.fmean), ("Normalised median", statistics.median)):
            row = {"Game": f"{title} ({where})"}
            rows.append(row | {name: _over(column, games, function) for name, column in columns.items()})
    return rows


def _published_name(method: str) -> str:
    return "TWM (published)" if method == "TWM" else method


def _thousands(count: int) -> str:
    return f"{count // 1000}K"


def _checkpoints(variants: Iterable[Variant]) -> list[int]:
    """Published counts before the end that some variant stops at: its fair comparison is TWM at that count."""
    return sorted({variant.interactions for variant in variants} & set(scores.CHECKPOINTS[:-1]))


def _means(variant: Variant) -> dict[str, float]:
    return {game: statistics.fmean(finals) for game in scores.GAMES if (finals := variant.final_scores(game))}


def _game_sets(variants: Iterable[Variant]) -> list[tuple[str, ...]]:
    """All 26 games, and each smaller set that a variant covers."""
    smaller = {tuple(variant.normalised()) for variant in variants} - {scores.GAMES}
    return [scores.GAMES, *sorted(smaller, key=len, reverse=True)]


def _over(column: Mapping[str, float], games: Sequence[str], function: Any) -> float | None:
    """A statistic of normalised scores over ``games``; None unless the column has them all."""
    if not all(game in column for game in games):
        return None
    return float(function([scores.normalise(game, column[game]) for game in games]))


def sample_efficiency_table(variants: Sequence[Variant]) -> list[Row]:
    """Scores after 5K to 100K interactions on the games we have, TWM as published above ours; then normalised means.

    A cell is the mean over the runs that were evaluated there (:func:`thin_cells` lists where some were not); "Runs"
    counts all runs. A normalised mean needs a score of every game.
    """
    published = {count: scores.published_at(count) for count in scores.CHECKPOINTS}
    ours = {variant.label: _means_at(variant) for variant in variants}
    played = {variant.label: tuple(env for env in scores.GAMES if env in variant.envs) for variant in variants}
    rows: list[Row] = []
    for game in (game for game in scores.GAMES if any(game in games for games in played.values())):
        rows.append(_stage_row(game, "TWM (published)", 5, published, [game], normalised=False))
        for variant in (variant for variant in variants if game in played[variant.label]):
            runs = len(variant.on(game))
            rows.append(_stage_row(game, variant.label, runs, ours[variant.label], [game], normalised=False))
    for games in dict.fromkeys([scores.GAMES, *played.values()] if rows else []):
        if games:
            where = "26 games" if games == scores.GAMES else ", ".join(games)
            title = f"Normalised mean ({where})"
            rows.append(_stage_row(title, "TWM (published)", 5 * len(games), published, games, normalised=True))
            for variant in (variant for variant in variants if played[variant.label] == games):
                runs = sum(len(variant.on(game)) for game in games)
                rows.append(_stage_row(title, variant.label, runs, ours[variant.label], games, normalised=True))
    return rows


def _stage_row(
    title: str,
    method: str,
    runs: int,
    stages: Mapping[int, Mapping[str, float]],
    games: Sequence[str],
    *,
    normalised: bool,
) -> Row:
    row: Row = {"Game": title, "Method": method, "Runs": runs}
    for count, column in stages.items():
        mean = _over(column, games, statistics.fmean) if normalised else column.get(games[0])
        row[_thousands(count)] = mean
    return row


def _means_at(variant: Variant) -> dict[int, dict[str, float]]:
    """{interactions: {game: mean over the runs evaluated there}}."""
    stages: dict[int, dict[str, float]] = {}
    for count in scores.CHECKPOINTS:
        found = {env: [each.mean for run in variant.on(env) if (each := at(run, count))] for env in variant.envs}
        stages[count] = {env: statistics.fmean(means) for env, means in found.items() if means}
    return stages


def thin_cells(variants: Sequence[Variant]) -> list[str]:
    """Where a cell of :func:`sample_efficiency_table` rests on fewer runs than the game has, in words."""
    notes = []
    for variant in variants:
        for game in (env for env in variant.envs if env in scores.GAMES):
            runs = variant.on(game)
            for count in scores.CHECKPOINTS:
                there = sum(at(run, count) is not None for run in runs)
                if 0 < there < len(runs):
                    notes.append(f"{variant.label}, {game} at {_thousands(count)}: {there} of {len(runs)} runs")
    return notes


# --------------------------------------------------------------------------------------------------
# Statistics


def aggregate_table(
    estimates: Mapping[str, Mapping[str, Estimate]], points: Mapping[str, Mapping[str, float]]
) -> list[Row]:
    """Ours with intervals, published ones as points: {method: {median, iqm, mean, optimality_gap}}."""
    rows: list[Row] = []
    for method, values in estimates.items():
        for metric, estimate in values.items():
            row: Row = {"Method": method, "Metric": metric, "Value": estimate.value}
            rows.append(row | {"Low": _known(estimate.low), "High": _known(estimate.high), "Source": "our runs"})
    for method, numbers in points.items():
        rows.extend(
            {"Method": method, "Metric": metric, "Value": number, "Source": "published"}
            for metric, number in numbers.items()
        )
    return rows


def profile_table(profiles: Mapping[str, Profile]) -> list[Row]:
    """Performance profiles, one row per method and threshold."""
    return [
        {
            "Method": method,
            "Threshold": float(tau),
            "Share of runs above": float(share),
            "Low": float(low),
            "High": float(high),
        }
        for method, profile in profiles.items()
        for tau, share, low, high in zip(*profile, strict=True)
    ]


def curve_table(variants: Sequence[Variant], envs: Iterable[str]) -> list[Row]:
    """Every evaluation of every run on ``envs``."""
    return [
        {
            "Environment": env,
            "Variant": variant.label,
            "Run": run.name,
            "Seed": run.seed,
            "Interactions": each.interactions,
            "Score": each.mean,
            "Low": _known(each.low),
            "High": _known(each.high),
            "Normalised": scores.normalise(env, each.mean) if env in scores.GAMES else None,
        }
        for env in envs
        for variant in variants
        for run in variant.on(env)
        for each in run.evaluations
    ]
