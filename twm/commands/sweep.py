"""``twm sweep``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from twm.commands import Output, UsageError
from twm.commands.options import PresetOrAuto, resolve_preset


@dataclass(frozen=True)
class Sweep:
    """Run many trainings on Ray: games x seeds x ablations, on this machine or on a cluster.

    Every run is a run directory below DIR that can be resumed. The same command again goes on where the sweep stopped,
    and more games, seeds or ablations extend it.
    """

    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """Directory of the sweep, on storage that all machines see."""
    envs: Annotated[tuple[str, ...], arg(metavar="NAME...")] = ()
    """Environments; all stands for the 26 games of the Atari 100k benchmark."""
    seeds: int = 1
    """Runs of each environment and variant, with the seeds 0, 1, ..."""
    preset: PresetOrAuto = "auto"
    """What the runs start from; auto takes paper where they are given GPUs (--gpus-per-run) and cpu otherwise."""
    ablation: Annotated[tuple[str, ...], arg(metavar="NAME...")] = ()
    """Ablations of the paper to run beside the preset: uniform-sampling, no-rewards, no-entropy-threshold, history-4,
    policy-zh, vanilla-transformer."""
    budget_study: Annotated[tuple[int, ...], arg(metavar="N...")] = ()
    """Fewer interactions with the same training budget, e.g. 10000 25000 50000."""
    set: Annotated[tuple[str, ...], arg(metavar="PATH=VALUE...")] = ()
    """Options of every run, e.g. train.interactions=25000."""
    cpus_per_run: int = 1
    """CPU cores that a run takes; also its number of threads."""
    gpus_per_run: float = 0.0
    """Share of a GPU that a run takes; 0.5 puts two runs on one."""
    address: str | None = None
    """HOST:PORT of a Ray cluster, or auto; without it Ray runs inside this command."""
    plan: Annotated[Path | None, arg(metavar="FILE")] = None
    """Take the sweep from a sweep.json instead of from the options above."""
    dry_run: bool = False
    """Print what would run and how long it would take, and stop."""
    status: Annotated[Path | None, arg(metavar="DIR")] = None
    """Show where the sweep in DIR stands, and stop."""
    json: bool = False
    """Print one JSON object; everything else goes to standard error."""

    def __call__(self) -> Output:
        from twm.lab.status import sweep_status, table

        if self.status is not None:
            standing = sweep_status(self.status)
            return Output({"runs": [asdict(run) for run in standing]}, table(standing))
        from twm.lab.plan import check
        from twm.lab.sweep import run_sweep

        plan = self._plan()
        if self.dry_run:
            return _dry_run(plan, check(plan))
        if self.out is None:
            raise UsageError("a sweep needs a directory: give --out DIR")
        with _Table() as display:
            standing = run_sweep(plan, self.out, address=self.address, on_progress=display.show)
        text = f"{table(standing)}\nnext    twm report {self.out} --compare"
        failed = sum(run.state == "failed" for run in standing)
        why = f"{failed} of {len(standing)} runs failed; the same command tries them again" if failed else ""
        return Output({"out": str(self.out), "runs": [asdict(run) for run in standing]}, text, why)

    def _plan(self) -> Any:
        from twm.lab.plan import load, make_plan, parse_options

        if self.plan is not None:
            names = ("envs", "ablation", "budget_study", "set", "seeds", "preset", "cpus_per_run", "gpus_per_run")
            given = [name for name in names if getattr(self, name) != getattr(Sweep, name)]
            if given:
                options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
                raise UsageError(f"--plan describes the whole sweep: leave out {options}")
            return load(self.plan)
        return make_plan(
            preset=resolve_preset(self.preset, "cuda" if self.gpus_per_run else "cpu"),
            envs=self.envs,
            seeds=self.seeds,
            ablations=self.ablation,
            budgets=self.budget_study,
            options=parse_options(self.set),
            cpus_per_run=self.cpus_per_run,
            gpus_per_run=self.gpus_per_run,
        )


def _dry_run(plan: Any, runs: list[Any]) -> Output:
    """The runs, and the time they need by one update in each environment and variant, timed here and now."""
    from twm.lab.estimate import run_seconds
    from twm.lab.status import clock

    seconds = {name: run_seconds(run.config) for name, run in {_method(run.name): run for run in runs}.items()}
    total = sum(seconds[_method(run.name)] for run in runs)
    lines = [f"{run.name:<44} about {clock(seconds[_method(run.name)])}" for run in runs]
    lines.append(f"{len(runs)} runs, {clock(total)} in all at {plan.cpus_per_run} CPU(s) a run on this machine")
    return Output({"runs": [run.name for run in runs], "seconds": seconds, "total_seconds": total}, "\n".join(lines))


def _method(name: str) -> str:
    """Environment and variant, which is all that the time depends on."""
    return name.rpartition("/")[0]


class _Table:
    """The live table on standard error: redrawn in a terminal, elsewhere a line when something changed."""

    def __init__(self) -> None:
        self._live: Any = None
        self._last = ""

    def show(self, standing: list[Any]) -> None:
        from twm.lab.status import counts, table

        if self._live is not None:
            self._live.update(table(standing, with_done=False), refresh=True)  # 130 lines would not fit
        elif (line := counts(standing)) != self._last:
            print(line, file=sys.stderr, flush=True)
            self._last = line

    def __enter__(self) -> _Table:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
