"""``twm report``: figures and tables of one run, of many runs, or of the sampling schedule alone, on one page.

Each function reads what there is, writes pictures (PNG) and their data (CSV, JSON) into a directory with
``index.html`` beside them, and returns what the page shows. What is missing is said on the page, in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twm.analysis import sampling_figures
from twm.analysis.cost_tables import machine_name
from twm.analysis.curves_section import curve_sections
from twm.analysis.page import write_page
from twm.analysis.runs import RunRecord, load_run
from twm.analysis.sampling import Visits
from twm.analysis.sampling_figures import label_of, name_of
from twm.analysis.section import Section, Writer
from twm.analysis.tables import Row
from twm.config import Config, ConfigError, from_dict
from twm.train.files import RunError, read_json, write_json
from twm.train.rundir import RunDir

PAGE = "index.html"
SAMPLING_DATA = "balanced-sampling.json"


@dataclass(frozen=True)
class Report:
    """A written report: the page, and what it holds."""

    page: Path
    sections: list[Section]

    @property
    def missing(self) -> list[str]:
        """Titles of the sections that have nothing to show."""
        return [s.title for s in self.sections if s.figure is None and s.table is None]

    def summary(self) -> dict[str, Any]:
        """For --json."""
        return {
            "page": str(self.page),
            "sections": [
                {
                    "title": s.title,
                    "figure": None if s.figure is None else str(s.figure),
                    "table": None if s.table is None else str(s.table),
                    "text": s.text,
                    "notes": s.notes,
                }
                for s in self.sections
            ],
        }


# --------------------------------------------------------------------------------------------------
# One run


def report_run(run: Path, out: Path, *, steps: int = 2000, seed: int = 0) -> Report:
    """Everything that one run shows. ``steps`` fresh interactions are played to look at its dreams."""
    record = load_run(run)
    if not record.options:
        raise ConfigError(f"{run} is not a run directory: expected one made by twm train, with a config.json")
    if RunDir(run).held_out.is_dir():
        raise ConfigError(
            f"{run} learned from recorded episodes, and a report plays in the environment: use twm eval {run} "
            f"--world-model, which measures its dreams, and twm studio {run}, which shows them"
        )
    writer = Writer(out)
    sections = [_facts(writer, record), *curve_sections(writer, record), *_dreams(writer, run, steps, seed)]
    sections.append(_attempt("Balanced sampling", lambda: _sampling_of_run(writer, run)))
    title = f"{record.env or 'A run'}: {record.name}"
    lead = "Figures and tables of one run, made by twm report. The data of each lies beside this page."
    return Report(write_page(out / PAGE, title, lead, sections), sections)


def _facts(writer: Writer, record: RunRecord) -> Section:
    """What was run, how far it came, how well it did."""
    final, machine = record.final, record.machine
    interval = None if final is None else f"{final.low:.4g} to {final.high:.4g}"
    facts: dict[str, Any] = {
        "Environment": record.env,
        "Seed": record.seed,
        "Preset": record.preset,
        "State": record.state,
        "Interactions": f"{record.interactions or 0:,} of {record.target or 0:,}",
        "Final score, mean": None if final is None else final.mean,
        "Final score, 95 % interval": interval,
        "Final score, episodes": None if final is None else final.episodes,
        "Random policy, mean": record.random_mean,
        "Best possible mean": record.optimal_return,
        "Hours": None if record.seconds is None else record.seconds / 3600,
        "Version": machine.get("twm"),
        "Commit": machine.get("commit"),
        "Processor": machine_name(record),
        "Threads": machine.get("threads"),
    }
    rows: list[Row] = [{"What": name, "Value": value} for name, value in facts.items() if value is not None]
    return writer.section("The run", "What was run and how it ended.", rows, notes=record.notes)


def _dreams(writer: Writer, run: Path, steps: int, seed: int) -> list[Section]:
    from twm.analysis import dream_sections

    try:
        specimen = dream_sections.prepare(run, steps, seed)
    except (ConfigError, RunError, OSError) as error:
        return [Section("Dreams to look at", f"Not made: {_reason(error)}")]
    parts: dict[str, Callable[..., Section | list[Section]]] = {
        "Imagined beside real": dream_sections.film_section,
        "Three dreams from one state": dream_sections.stochastic_section,
        "A long dream": dream_sections.long_section,
        "Predicted frame stacks": dream_sections.stacks_section,
        "Attention": dream_sections.attention_sections,
        "World model quality": dream_sections.quality_section,
    }
    sections: list[Section] = []
    for title, make in parts.items():
        try:
            made = make(writer, specimen)
        except (ConfigError, RunError) as error:
            made = Section(title, f"Not made: {_reason(error)}")
        sections += made if isinstance(made, list) else [made]
    return sections


def _sampling_of_run(writer: Writer, run: Path) -> Section:
    """The run's own visits, beside a simulation of its schedule with its temperature and with uniform sampling."""
    config: Config = from_dict(read_json(run / "config.json"))
    found = sampling_figures.run_visits(run)
    if not found.visits.any():
        return Section("Balanced sampling", "No entry has been visited yet: the main phase has not begun.")
    if len(found.visits) < config.train.prefill:  # a checkpoint made small to be shipped
        text = (
            f"The checkpoint keeps the visits of {len(found.visits):,} entries only, too few to draw the figure from."
        )
        return Section("Balanced sampling", text)
    tau = config.replay.temperature
    visits: dict[str, Visits] = {f"this run ({label_of(tau)})": found.visits}
    for temperature in dict.fromkeys([tau, math.inf]):
        simulated = sampling_figures.same_schedule(config, found, temperature)
        visits[f"{label_of(temperature)}, simulated"] = simulated
    text = (
        "How often each entry of the experience was drawn as the start of a sequence in the main phase, and the share "
        f"of all draws that fell on the entries up to each one. {_halves_text(visits)}"
    )
    figure = sampling_figures.sampling_figure(visits)
    return writer.section("Balanced sampling", text, sampling_figures.sampling_table(visits), figure)


def _halves_text(visits: dict[str, Visits]) -> str:
    halves = sampling_figures.halves(visits).items()
    counts = "; ".join(f"{name}: {half['half_time_entry']:,}" for name, half in halves)
    return f"Half of the training time falls on so many first entries: {counts}."


def _attempt(title: str, make: Callable[[], Section]) -> Section:
    """The section, or one that says why it could not be made."""
    try:
        return make()
    except (ConfigError, RunError, OSError) as error:
        return Section(title, f"Not made: {_reason(error)}")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())


# --------------------------------------------------------------------------------------------------
# Many runs, and the schedule alone


def report_runs(paths: Iterable[Path], out: Path) -> Report:
    """Runs and benchmarks at or below ``paths`` against each other and against the published results."""
    from twm.analysis.compare import compare

    sections = compare(list(paths), out, parameters=_paper_parameters())
    lead = "Runs compared with each other and with the published results, made by twm report. Data beside this page."
    return Report(write_page(out / PAGE, "Runs compared", lead, sections), sections)


def _paper_parameters() -> dict[str, int]:
    """Parameters of the paper's models as built here, for the six actions that its table counts with."""
    from twm.agent import parameter_counts
    from twm.types import EnvSpec
    from twm.world_model.observation import ObservationModel

    paper, spec = Config(), EnvSpec("six actions", (1, 64, 64), 4, tuple("abcdef"))
    encoder = ObservationModel(paper.world_model, spec.observation_shape).encoder
    return {**parameter_counts(paper, spec), "encoder": sum(p.numel() for p in encoder.parameters())}


def report_sampling(out: Path, temperatures: Sequence[float] = sampling_figures.TEMPERATURES) -> Report:
    """The paper's figure of balanced sampling from a simulation of its schedule, which needs no training."""
    found = sampling_figures.paper_visits(temperatures)
    visits = {label_of(tau): found[name_of(tau)] for tau in temperatures}
    writer = Writer(out)
    text = (
        "A simulation of the paper's schedule: 5,000 interactions and pretraining on them, then 125,000 updates spread "
        f"over the 95,000 interactions that follow, 100 sequences each. {_halves_text(visits)}"
    )
    figure = sampling_figures.sampling_figure(visits)
    section = writer.section("Balanced sampling", text, sampling_figures.sampling_table(visits), figure)
    write_json(out / SAMPLING_DATA, sampling_figures.halves(found))
    page = write_page(out / PAGE, "Balanced sampling", "Made by twm report --figure sampling.", [section])
    return Report(page, [section])
