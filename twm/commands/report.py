"""``twm report``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from twm.commands import Output, UsageError

if TYPE_CHECKING:
    from twm.analysis.report import Report

RESULTS = Path("results")


@dataclass(frozen=True)
class MakeReport:
    """Turn runs into figures and tables: one page that opens offline, pictures and data beside it.

    One RUN shows its curves, dreams and attention. --compare sets runs against each other and the published results.
    Without RUN, the results that come with the project are compared.
    """

    runs: Positional[Annotated[tuple[Path, ...], arg(metavar="[RUN ...]")]] = ()
    """Run directories; with --compare also directories that hold some, and results of twm bench."""
    compare: bool = False
    """Compare runs with each other and with the published results."""
    figure: Annotated[Literal["sampling"] | None, arg(metavar="{sampling}")] = None
    """Only one figure that needs no run. sampling: how balanced sampling shares the training time of the paper's
    schedule among the experience, by simulation (about a minute)."""
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """Where to put page, pictures and data (default: RUN/report for one run, report otherwise)."""
    steps: int = 2000
    """Fresh interactions to look at a run's dreams with."""
    seed: int = 0
    """Seed of these interactions and of the dreams."""
    json: bool = False
    """Print one JSON object: the numbers of the figure, or what the page holds."""

    def __call__(self) -> Output:
        if self.figure is not None:
            return self._figure()
        if self.compare or not self.runs:
            return self._compare()
        if len(self.runs) > 1:
            raise UsageError(f"{len(self.runs)} runs were given: add --compare to compare them, or give one")
        run = self.runs[0]

        from twm.analysis.runs import find_runs

        found = find_runs([run])
        if found != [run]:
            hint = f"holds {len(found)} runs: add --compare, or give one of them" if found else "holds no run"
            raise UsageError(f"{run} is not a run directory, but {hint}")

        from twm.analysis.report import report_run

        return _output(report_run(run, self.out or run / "report", steps=self.steps, seed=self.seed))

    def _compare(self) -> Output:
        paths = list(self.runs) or [_committed_results()]

        from twm.analysis.report import report_runs

        return _output(report_runs(paths, self.out or Path("report")))

    def _figure(self) -> Output:
        if self.runs or self.compare:
            raise UsageError(
                "--figure sampling needs no run: leave out RUN and --compare (the report of a run has its own)"
            )
        print("simulating the paper's sampling schedule …", file=sys.stderr)

        from twm.analysis.report import SAMPLING_DATA, report_sampling
        from twm.train.files import read_json

        report = report_sampling(self.out or Path("report"))
        halves = read_json(report.page.parent / SAMPLING_DATA)
        lines = [
            f"{name:>8}: half of the time on the first {half['half_time_entry']:,} entries, "
            f"{half['first_half_share']:.3f} of it on the first half"
            for name, half in halves.items()
        ]
        return Output(halves, "\n".join([*lines, f"page      {report.page}"]))


def _committed_results() -> Path:
    """The measured runs that come with the project: here, or beside the package in a checkout of the source."""
    import twm

    for place in (RESULTS, Path(twm.__file__).resolve().parent.parent / RESULTS):
        if place.is_dir():
            return place
    raise UsageError("there is no results directory here: give a RUN, or RUNS with --compare")


def _output(report: Report) -> Output:
    count = len(report.sections)
    lines = [f"page     {report.page}", f"sections {count}, {count - len(report.missing)} with figures or tables"]
    lines += [f"missing  {title}" for title in report.missing]
    return Output(report.summary(), "\n".join(lines))
