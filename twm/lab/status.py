"""Where the runs of a sweep stand, read from their files alone: any terminal can ask, no process need answer."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twm.lab.plan import PlannedRun, load
from twm.train import metrics
from twm.train.files import RunError, read_json


@dataclass(frozen=True)
class Status:
    """One run: waiting, running, stopped (begun, but no process is at it), done or failed."""

    name: str
    state: str
    interactions: int = 0
    total: int = 0
    score: float | None = None
    seconds: float = 0.0
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.state == "done"

    @property
    def seconds_left(self) -> float | None:
        """By the pace so far; None before there is one."""
        if self.finished:
            return 0.0
        if not self.interactions or not self.seconds:
            return None
        return self.seconds * (self.total - self.interactions) / self.interactions


def sweep_status(out: Path) -> list[Status]:
    """All runs of the sweep in ``out``."""
    path = out / "sweep.json"
    if not path.is_file():
        raise RunError(f"{out} holds no sweep: expected a directory made by twm sweep --out")
    return [status_of(run, out) for run in load(path).runs()]


def status_of(run: PlannedRun, out: Path) -> Status:
    directory, total = run.directory(out), run.config.train.interactions
    if not (directory / "config.json").is_file():
        return _failed(directory, run.name, total) or Status(run.name, "waiting", total=total)
    if (directory / "eval.json").is_file():
        evaluation: Any = read_json(directory / "eval.json")
        return Status(run.name, "done", total, total, evaluation["mean"], evaluation["seconds"])
    records = metrics.read(directory / "metrics.jsonl") if (directory / "metrics.jsonl").is_file() else []
    interactions = int(records[-1].get("interactions", 0)) if records else 0
    seconds = max((record.get("time/elapsed") or 0.0 for record in records), default=0.0)
    score = next((r["eval/score_mean"] for r in reversed(records) if "eval/score_mean" in r), None)
    failed = _failed(directory, run.name, total, interactions, score, seconds)
    state = "running" if _is_locked(directory / "lock") else "stopped"
    return failed or Status(run.name, state, interactions, total, score, seconds)


def _failed(
    directory: Path, name: str, total: int, interactions: int = 0, score: float | None = None, seconds: float = 0.0
) -> Status | None:
    if not (directory / "failed.json").is_file():
        return None
    error = read_json(directory / "failed.json").get("error")
    return Status(name, "failed", interactions, total, score, seconds, error)


def _is_locked(path: Path) -> bool:
    """Whether a process holds the run's lock (on this machine, or on storage whose locks reach here)."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False


def table(standing: list[Status], *, with_done: bool = True) -> str:
    """A line for each run that says something, then the counts."""
    lines = [f"{'run':<44}{'state':<9}{'interactions':>16}{'score':>12}{'left':>10}"]
    for run in sorted(standing, key=lambda run: (_ORDER.index(run.state), run.name)):
        if run.state == "waiting" or (run.finished and not with_done):
            continue
        score = "" if run.score is None else f"{run.score:,.1f}"
        left = "" if run.finished or run.seconds_left is None else clock(run.seconds_left)
        lines.append(f"{run.name:<44}{run.state:<9}{f'{run.interactions:,}/{run.total:,}':>16}{score:>12}{left:>10}")
        if run.error:
            lines.append(f"    {run.error}")
    whole = seconds_left(standing)
    return "\n".join([*lines, counts(standing) + ("" if whole is None else f", about {clock(whole)} left")])


_ORDER = ("running", "failed", "stopped", "done", "waiting")


def counts(standing: list[Status]) -> str:
    """``2 running, 1 failed, 5 waiting``."""
    numbers = {state: sum(run.state == state for run in standing) for state in _ORDER}
    return ", ".join(f"{number} {state}" for state, number in numbers.items() if number)


def seconds_left(standing: list[Status]) -> float | None:
    """Of the whole sweep, with as many runs at a time as now; None while nothing runs or no run has a pace yet."""
    paced = [run.seconds * run.total / run.interactions for run in standing if run.interactions and run.seconds]
    running = sum(run.state == "running" for run in standing)
    if not paced or not running:
        return None
    typical = sum(paced) / len(paced)
    unfinished = [run.seconds_left for run in standing if run.state in ("running", "stopped", "waiting")]
    return sum(typical if left is None else left for left in unfinished) / running


def clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
