"""Many runs against each other and against the published results: ``twm report RUNS... --compare``.

``compare`` reads run directories and benchmark files and returns the sections of a report: text, a picture
(PNG), its data (CSV), and notes on what is missing. Tables and figures themselves are pure functions in the
modules beside this one, usable from a notebook on the same records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twm.analysis import cost_tables, curves, tables
from twm.analysis.compare_statistics import aggregate_sections, improvement_section
from twm.analysis.runs import RunRecord, find_benchmarks, find_runs, load_run
from twm.analysis.section import Section, Writer
from twm.analysis.variants import Pair, Variant, ablated, group, pairs
from twm.lab import scores
from twm.lab.ablations import ABLATIONS, is_budget

__all__ = ["RunRecord", "Section", "compare", "find_runs", "load_run", "sections_of"]


def compare(paths: Iterable[Path], out_dir: Path, *, parameters: Mapping[str, int] | None = None) -> list[Section]:
    """Read everything at or below ``paths``, write pictures and data to ``out_dir``, return the report's sections.

    ``parameters`` are counts of the modules really built ({"observation": ..., "dynamics": ..., ...}).
    """
    paths = list(paths)
    runs = [load_run(path) for path in find_runs(paths)]
    return sections_of(runs, out_dir, benchmarks=find_benchmarks(paths), parameters=parameters)


def sections_of(
    runs: Sequence[RunRecord],
    out_dir: Path,
    *,
    benchmarks: Mapping[str, Mapping[str, Any]] | None = None,
    parameters: Mapping[str, int] | None = None,
) -> list[Section]:
    """:func:`compare` for runs already read."""
    variants, notes = group(runs)
    writer = Writer(out_dir)
    return [
        _inventory(writer, variants, notes),
        _final_scores(writer, variants),
        _learning_curves(writer, variants),
        _results(writer, variants),
        *aggregate_sections(writer, variants),
        improvement_section(writer, variants),
        _sample_efficiency(writer, variants),
        *_ablations(writer, variants),
        _wall_clock(writer, variants),
        _throughput(writer, benchmarks or {}),
        _parameters(writer, parameters or {}),
    ]


# --------------------------------------------------------------------------------------------------
# Ours


def _inventory(writer: Writer, variants: Sequence[Variant], notes: Sequence[str]) -> Section:
    runs = [run for variant in variants for run in variant.runs]
    if not runs:
        return writer.section("Runs", "No runs were found.", notes=notes)
    finished = sum(run.final is not None for run in runs)
    text = (
        f"Runs: {len(runs)}, finished: {finished}, variants: {len(variants)}, environments: {len(_envs(variants))}. "
        "Only finished runs enter final scores; learning curves show all."
    )
    unfinished = [f"{run.name}: {run.state}" for run in runs if run.final is None]
    changed = [
        f"{variant.label}: {variant.preset} with {changes}" for variant in variants if (changes := variant.changes())
    ]
    return writer.section("Runs", text, tables.run_table(variants), notes=[*notes, *unfinished, *changed])


def _final_scores(writer: Writer, variants: Sequence[Variant]) -> Section:
    rows = tables.environment_table(variants)
    if not rows:
        return Section("Final scores", "No run has finished, so there are no final scores yet.")
    notes = [f"{row['Environment']}, {row['Variant']}: one run only" for row in rows if row["Runs"] == 1]
    if notes:
        notes.append("With one run the interval is over its episodes and says nothing about other seeds.")
    text = "Mean over finished runs with 95 % t interval, beside the random policy and, where it is known, the optimum."
    return writer.section("Final scores", text, rows, notes=notes)


def _learning_curves(writer: Writer, variants: Sequence[Variant]) -> Section:
    ablations = ablated(variants)  # they have figures of their own
    shown: dict[str, dict[str, Variant]] = {}
    for env in _envs(variants):
        on = {label: variant for label, variant in _on(variants, env).items() if (env, label) not in ablations}
        if any(run.evaluations for variant in on.values() for run in variant.on(env)):
            shown[env] = on
    if not shown:
        return Section("Learning curves", "No run has been evaluated yet.")
    panels = [curves.panel(env, on) for env, on in shown.items()]
    text = (
        "Thin lines are runs; the thick line is their mean, drawn where all runs of a variant were evaluated, with a "
        "95 % band over runs (none for two, over episodes for one). Diamonds are the published scores."
    )
    rows = [row for env, on in shown.items() for row in tables.curve_table(list(on.values()), [env])]
    return writer.section("Learning curves", text, rows, curves.curves_figure(panels))


def _envs(variants: Sequence[Variant]) -> list[str]:
    return sorted({env for variant in variants for env in variant.envs})


def _on(variants: Sequence[Variant], env: str) -> dict[str, Variant]:
    return {variant.label: variant for variant in variants if variant.on(env)}


# --------------------------------------------------------------------------------------------------
# Beside the published results


def _results(writer: Writer, variants: Sequence[Variant]) -> Section:
    played = [game for game in scores.GAMES if any(variant.final_scores(game) for variant in variants)]
    missing = [game for game in scores.GAMES if game not in played]
    notes = []
    if not played:
        notes.append("None of the 26 games has a finished run: the table holds published scores only.")
    elif missing:
        notes.append(f"No finished run on {len(missing)} of 26 games: {', '.join(missing)}.")
    notes += [
        f"{variant.label} had {variant.interactions:,} interactions, the published methods 100,000."
        for variant in variants
        if variant.normalised() and variant.interactions != scores.CHECKPOINTS[-1]
    ]
    text = "Mean scores per game: random policy, human, the methods of the paper's result table, and our finished runs."
    return writer.section("Results beside the published ones", text, tables.result_table(variants), notes=notes)


def _sample_efficiency(writer: Writer, variants: Sequence[Variant]) -> Section:
    rows = tables.sample_efficiency_table(variants)
    if not rows:
        return Section(
            "Sample efficiency", "No run on any of the 26 games, so nothing to set beside the paper's table."
        )
    text = (
        "Scores after 5K to 100K interactions, from the evaluations during training and the final one. A cell is empty "
        "where no run was evaluated after that many interactions."
    )
    return writer.section("Sample efficiency", text, rows, notes=tables.thin_cells(variants))


# --------------------------------------------------------------------------------------------------
# Ablations


def _ablations(writer: Writer, variants: Sequence[Variant]) -> list[Section]:
    """A section per ablation that has runs, with and without, on the same games; and one on those that have none."""
    found = pairs(variants)
    sections, shown = [], set()
    for together in _by_figure([pair for pair in found if pair.envs]):
        sections.append(_ablation(writer, together))
        shown |= {pair.ablation.name for pair in together}
    notes = [
        f"{pair.ablated.label} against {pair.base.label}: no environment in common" for pair in found if not pair.envs
    ]
    absent = [ablation for ablation in ABLATIONS.values() if ablation.name not in shown]
    notes += [f"{ablation.name}: {ablation.title} ({ablation.where})" for ablation in absent]
    if not any(is_budget(name) for name in shown):
        notes.append("budget-…: fewer interactions with the same training budget (appendix)")
    if notes:
        text = "No runs with and without, equal in all else and on a common environment, for the ablations below."
        sections.append(Section("Ablations without runs", text, notes=notes))
    return sections


def _by_figure(found: Sequence[Pair]) -> list[list[Pair]]:
    """Each ablation by itself; all budgets of one base together, without those that compare two reduced budgets."""
    budgets = [pair for pair in found if is_budget(pair.ablation.name)]
    reduced = {pair.ablated.label for pair in budgets}
    full = dict.fromkeys(pair.base.label for pair in budgets if pair.base.label not in reduced)
    single = [[pair] for pair in found if not is_budget(pair.ablation.name)]
    return [*single, *([pair for pair in budgets if pair.base.label == label] for label in full)]


def _ablation(writer: Writer, together: Sequence[Pair]) -> Section:
    """Curves of one base and what was changed, on the environments that any of the pairs share."""
    base, first = together[0].base, together[0].ablation
    envs = sorted({env for pair in together for env in pair.envs})
    shown = {base.label: base, **{pair.ablation.title: pair.ablated for pair in together}}
    notes = []
    for env in envs:
        for label, variant in shown.items():
            runs = variant.on(env)
            if len(runs) <= 1:
                notes.append(f"{env}, {label}: " + ("one run, the band is over its episodes" if runs else "no run"))
            notes += [f"{env}, {label}, {run.name}: {run.state}" for run in runs if run.final is None]
    title = "Fewer interactions, same budget" if len(together) > 1 else first.title
    what = " ".join(pair.ablation.description for pair in together)
    text = f"{what} Paper: {first.where}. Everything else is as in the {base.label}."
    rows = tables.curve_table(list(shown.values()), envs)
    panels = [curves.panel(env, shown, published=False) for env in envs]
    return writer.section(f"Ablation of the {base.label}: {title}", text, rows, curves.curves_figure(panels), notes)


# --------------------------------------------------------------------------------------------------
# Cost


def _wall_clock(writer: Writer, variants: Sequence[Variant]) -> Section:
    rows = cost_tables.wall_clock_table(variants)
    notes = [f"Published: {scores.source('wall_clock')}."]
    if not any(row["Source"] == "our runs" for row in rows):
        notes.append("No finished run of ours recorded its time.")
    return writer.section("Wall-clock time", "Hours for training and evaluation of one run.", rows, notes=notes)


def _throughput(writer: Writer, benchmarks: Mapping[str, Mapping[str, Any]]) -> Section:
    rows = cost_tables.throughput_table(benchmarks)
    notes = [f"Published: {scores.source('throughput')}."]
    notes += [f"{name}: {_describe(bench['machine'])}" for name, bench in benchmarks.items()]
    if not benchmarks:
        notes.append("No benchmark results were given; make some with twm bench --json.")
    text = "What each part processes in a second; units are seconds times the machine's measured GFLOPS."
    return writer.section("Throughput", text, rows, notes=notes)


def _describe(machine: Mapping[str, Any]) -> str:
    facts = {key: value for key, value in machine.items() if isinstance(value, (str, int, float))}
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in facts.items()
    )


def _parameters(writer: Writer, parameters: Mapping[str, int]) -> Section:
    notes = [f"Published: {scores.source('parameters')}."]
    if not parameters:
        notes.append("Our modules were not counted for this report.")
    return writer.section(
        "Parameters", "Parameters of the models.", cost_tables.parameter_table(parameters), notes=notes
    )
