"""The parts of a run's report that read its metrics."""

from __future__ import annotations

from collections.abc import Sequence

from twm.analysis import run_curves
from twm.analysis.run_curves import Record
from twm.analysis.runs import RunRecord, read_lines
from twm.analysis.section import Section, Writer

_TEXTS = {
    "Losses": "Terms of the loss, unweighted, means between records; the thick line is a running mean over five.",
    "Dreams while training": "What the policy meets in its dreams while it learns.",
    "Pretraining": "Each part alone, on the experience of the random policy.",
    "Speed": "From the times in the records. Other work on the machine shows here, too.",
}
_SCORES = ("episode/score", "eval/score_mean", "eval/score_low", "eval/score_high")


def curve_sections(writer: Writer, record: RunRecord) -> list[Section]:
    """Scores, entropies, losses, dreams, pretraining, speed: each with its numbers, or saying that there are none."""
    records, _ = read_lines(record.path / "metrics.jsonl")  # loading the run has noted what is wrong with it
    if not records:
        return [Section("Learning curves", "metrics.jsonl holds no records yet.")]
    learning, before = run_curves.main_phase(records), run_curves.pretraining(records)
    sections = [_score(writer, record, records), _entropies(writer, record, learning)]
    for title, draw, rows in (
        ("Losses", run_curves.losses_figure, run_curves.metrics_table(learning, list(run_curves.LOSSES))),
        (
            "Dreams while training",
            run_curves.dreams_figure,
            run_curves.metrics_table(learning, list(run_curves.DREAMS)),
        ),
        (
            "Pretraining",
            run_curves.pretraining_figure,
            run_curves.metrics_table(before, [*run_curves.PRETRAIN_KEYS, *run_curves.LOSSES]),
        ),
        ("Speed", run_curves.speed_figure, run_curves.metrics_table(records, ["time/elapsed"])),
    ):
        if rows:
            sections.append(writer.section(title, _TEXTS[title], rows, draw(records)))
        else:
            sections.append(Section(title, f"{_TEXTS[title]} Nothing recorded yet."))
    return sections


def _score(writer: Writer, record: RunRecord, records: Sequence[Record]) -> Section:
    text = (
        "Whole games with the policy as it was, sampled, with the 95 % interval of their mean; the dots are means of "
        "the games that ended while experience was collected."
    )
    notes = [] if record.evaluations else ["not evaluated yet"]
    rows = run_curves.metrics_table(records, _SCORES)
    return writer.section("Score", text, rows, run_curves.score_figure(record, records), notes)


def _entropies(writer: Writer, record: RunRecord, learning: Sequence[Record]) -> Section:
    text = "Too little entropy and the policy stops exploring; too much and it acts at random."
    rows = run_curves.metrics_table(learning, list(run_curves.ENTROPIES))
    if not rows:
        return Section("Entropies", f"{text} Nothing recorded yet.")
    threshold = record.options.get("policy.entropy_threshold")
    return writer.section("Entropies", text, rows, run_curves.entropies_figure(learning, threshold))
