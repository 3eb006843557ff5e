"""Sections with statistics over runs and games: aggregates, performance profiles, probability of improvement.

Methods are only compared over games that both have: there is a section for each set of games that one of our
variants covers, and published values are taken over the same set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from twm.analysis import tables
from twm.analysis.compare_figures import Improvement, aggregates_figure, improvement_figure, profiles_figure
from twm.analysis.section import Section, Writer
from twm.analysis.variants import Variant, pairs
from twm.lab import aggregate, scores
from twm.lab.aggregate import Scores

_MOST_PAIRS = 15  # lines that still make a readable figure


def aggregate_sections(writer: Writer, variants: Sequence[Variant]) -> list[Section]:
    """Aggregates and profiles for each set of games that a variant covers, the largest first."""
    sets = dict.fromkeys(tuple(variant.normalised()) for variant in variants)
    sections = []
    for games in sorted((games for games in sets if games), key=len, reverse=True):
        arrays, counts = {}, set()
        for variant in variants:
            normalised = variant.normalised()
            if set(games) <= set(normalised):
                arrays[variant.label], _ = aggregate.as_array({game: normalised[game] for game in games})
                counts.add(variant.interactions)
        sections += _sections_over(writer, games, arrays, _published(games, counts))
    if sections:
        return sections
    text = "No finished run on any of the 26 games, the only ones with human scores: nothing to aggregate."
    return [Section("Aggregates", text)]


def _sections_over(
    writer: Writer, games: tuple[str, ...], arrays: Mapping[str, Scores], published: Mapping[str, Scores]
) -> list[Section]:
    where = games[0] if len(games) == 1 else f"{len(games)} games"
    estimates = {label: aggregate.bootstrap(array) for label, array in arrays.items()}
    points = {method: _points(method, column, games) for method, column in published.items()}
    thresholds = _thresholds([*arrays.values(), *published.values()])
    profiles = {label: aggregate.performance_profile(array, thresholds) for label, array in arrays.items()}
    references = {
        f"{method}, per-game means": aggregate.performance_profile(column, thresholds)
        for method, column in published.items()
        if method.startswith("TWM")
    }
    notes = [f"Games: {', '.join(games)}.", *(_runs_note(label, array) for label, array in arrays.items())]
    notes.append("Published values have no intervals here: only per-game means of those methods are in the package.")
    return [
        writer.section(
            f"Aggregates ({where})",
            "Human-normalised scores over runs and games; 95 % stratified bootstrap intervals (Agarwal et al. 2021).",
            tables.aggregate_table(estimates, points),
            aggregates_figure(estimates, points, len(games)),
            notes,
        ),
        writer.section(
            f"Performance profiles ({where})",
            "Share of runs that score above τ, each game counting the same; bands are pointwise 95 % intervals.",
            tables.profile_table({**profiles, **references}),
            profiles_figure(profiles, references, len(games)),
            notes,
        ),
    ]


def _published(games: Sequence[str], counts: Iterable[int]) -> dict[str, Scores]:
    """Normalised published scores, (1 x games): each method, and TWM after as few interactions as ours had."""
    columns = {"TWM (published)" if method == "TWM" else method: scores.published(method) for method in scores.METHODS}
    for count in sorted(set(counts) & set(scores.CHECKPOINTS[:-1])):
        columns[f"TWM at {count // 1000}K (published)"] = scores.published_at(count)
    return {
        method: np.array([[scores.normalise(game, column[game]) for game in games]])
        for method, column in columns.items()
    }


def _points(method: str, column: Scores, games: Sequence[str]) -> dict[str, float]:
    """Mean and median follow from per-game means on any games. The IQM needs runs: it is known over all 26 only."""
    points = {"median": float(aggregate.median(column)), "mean": float(aggregate.mean(column))}
    iqm = {peer.method: peer.iqm for peer in scores.peers()}.get(method.removesuffix(" (published)"))
    if tuple(games) == scores.GAMES and iqm is not None:
        points["iqm"] = iqm
    return points


def _thresholds(arrays: Sequence[Scores]) -> Scores:
    """From below the lowest to above the highest score, and at least from random to human level."""
    low = min(0.0, *(float(np.nanmin(array)) for array in arrays))
    high = max(1.0, *(float(np.nanmax(array)) for array in arrays))
    margin = 0.05 * (high - low)
    return np.linspace(low - margin, high + margin, 201)


def _runs_note(label: str, array: Scores) -> str:
    runs = (~np.isnan(array)).sum(axis=0)
    count = f"{runs.min()}" if runs.min() == runs.max() else f"{runs.min()} to {runs.max()}"
    unequal = "" if runs.min() == runs.max() else "; in the IQM a game with more runs counts for more"
    missing = "" if runs.min() > 1 else "; no interval, as that takes two runs of every game"
    return f"{label}: {count} finished run{'s' if runs.max() > 1 else ''} a game{unequal}{missing}."


# --------------------------------------------------------------------------------------------------
# Probability of improvement


def improvement_section(writer: Writer, variants: Sequence[Variant]) -> Section:
    """Our variants against each other on whatever both ran on, then against published means."""
    title = "Probability of improvement"
    ours, notes = _between(variants)
    published, more = _against_published(variants)
    notes += more
    if not ours and not published:
        return Section(title, "No two methods have finished runs on the same environment: nothing to compare.")
    if not ours:
        notes.append("No two of our variants have finished runs on the same environment.")
    notes += [
        f"{row.better} against {row.other}: no interval, as that takes two runs of every game"
        for row in [*ours, *published]
        if np.isnan(row.estimate.low)
    ]
    text = (
        "How likely a run of the first scores above a run of the second on a game drawn at random, ties counting half "
        "(Mann-Whitney). Gray: above the published mean of a game, as those methods' runs are not at hand."
    )
    rows = [_row(improvement) for improvement in [*ours, *published]]
    return writer.section(title, text, rows, improvement_figure([*ours, *published]), notes)


def _row(improvement: Improvement) -> tables.Row:
    better, other, games, estimate, published = improvement
    against = "published mean" if published else "runs"
    row: tables.Row = {"First": better, "Second": other, "Second is": against, "Environments": games}
    return row | {"Probability": estimate.value, "Low": estimate.low, "High": estimate.high}


def _between(variants: Sequence[Variant]) -> tuple[list[Improvement], list[str]]:
    """Pairs of variants; the base of an ablation comes first. Raw scores do: only order within a game counts."""
    ordered = {(pair.base.label, pair.ablated.label) for pair in pairs(variants)}
    found = []
    for index, first in enumerate(variants):
        for second in variants[index + 1 :]:
            x, y = (second, first) if (second.label, first.label) in ordered else (first, second)
            envs = [env for env in x.envs if x.final_scores(env) and y.final_scores(env)]
            if envs:
                left, _ = aggregate.as_array({env: x.final_scores(env) for env in envs})
                right, _ = aggregate.as_array({env: y.final_scores(env) for env in envs})
                estimate = aggregate.probability_of_improvement(left, right)
                found.append(Improvement(x.label, y.label, len(envs), estimate))
    if len(found) <= _MOST_PAIRS:
        return found, []
    kept = [row for row in found if (row.better, row.other) in ordered]
    if not kept:
        kept = found[:_MOST_PAIRS]
        return kept, [f"Of {len(found)} pairs of variants the first {len(kept)} are compared."]
    return kept, [f"Of {len(found)} pairs of variants the {len(kept)} that are one ablation apart are compared."]


def _against_published(variants: Sequence[Variant]) -> tuple[list[Improvement], list[str]]:
    """Variants that are not an ablation of another against every published method on the games they have."""
    ablations = {pair.ablated.label for pair in pairs(variants)}
    found = []
    for variant in variants:
        normalised = variant.normalised()
        if not normalised or variant.label in ablations:
            continue
        x, games = aggregate.as_array(normalised)
        for method, column in _published(games, [variant.interactions]).items():
            estimate = aggregate.probability_of_improvement(x, column, fixed=True)
            found.append(Improvement(variant.label, method, len(games), estimate, published=True))
    if len(found) <= _MOST_PAIRS:
        return found, []
    kept = [row for row in found if row.other.startswith("TWM")]
    return kept, ["Several variants: of the published methods only TWM is compared, to keep the figure readable."]
