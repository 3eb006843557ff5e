"""Run directories as records: read what is there, say what is not.

Reading never fails on an unfinished or damaged run: a run that is still going lacks its evaluation, a killed
one may end in half a line. What is missing is noted in words and left out of every number. Reports are made
of what this module returns, so a value that is not in the files cannot appear in one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from twm.config import Config, ConfigError, flatten
from twm.intervals import mean_interval

_PARTS = ("config.json", "metrics.jsonl", "eval.json")
_ELAPSED = "time/elapsed"  # key of metrics.jsonl: seconds of work so far, over all resumes


class Evaluation(NamedTuple):
    """Mean score over episodes after so many interactions; bounds are NaN where the files do not give them."""

    interactions: int
    mean: float
    low: float
    high: float
    episodes: int | None = None


@dataclass(frozen=True)
class RunRecord:
    """One run as its files tell it."""

    path: Path
    env: str | None
    seed: int | None
    preset: str | None
    options: Mapping[str, Any]  # flat, by path; what an older file lacks has the default value
    evaluations: tuple[Evaluation, ...]  # by interactions; the final one, with most episodes, included
    final: Evaluation | None  # eval.json, if it was made after all interactions
    random_mean: float | None  # the random policy in the same environment
    optimal_return: float | None
    interactions: int | None  # how far it came
    seconds: float | None  # of work so far, with the final evaluation where there is one
    machine: Mapping[str, Any]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Enough of the path to find it again: a sweep's runs are often told apart by the directory above only."""
        return "/".join(self.path.parts[-2:])

    @property
    def target(self) -> int | None:
        """Interactions it was to make."""
        return _whole(self.options.get("train.interactions"))

    @property
    def state(self) -> str:
        """For tables: finished, or how far it came."""
        if self.final is not None:
            return "finished"
        if self.interactions is None or self.target is None:
            return "unfinished"
        if self.interactions >= self.target:
            return "final evaluation missing"
        return f"unfinished: {self.interactions:,} of {self.target:,} interactions"


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Every run directory at or below ``paths``, sorted; a run directory is not searched for further ones."""
    found: set[Path] = set()
    for path in paths:
        _require(path)
        for directory, subdirectories, files in os.walk(path):
            if any(part in files for part in _PARTS):
                found.add(Path(directory))
                subdirectories.clear()
    return sorted(found)


def find_benchmarks(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Results of ``twm bench`` at or below ``paths`` by file name: JSON objects with ``machine`` and ``parts``."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        _require(path)
        for directory, subdirectories, files in _walk(path):
            if any(part in files for part in _PARTS):
                subdirectories.clear()
                continue
            for name in sorted(files):
                if name.endswith(".json"):
                    data, _ = _read_object(Path(directory) / name)
                    if isinstance(data.get("machine"), dict) and isinstance(data.get("parts"), dict):
                        found[_fresh(Path(name).stem, found)] = data
    return found


def load_run(path: Path) -> RunRecord:
    """Read one run directory; missing or unreadable parts become notes."""
    _require(path)
    config, config_notes = _read_object(path / "config.json")
    machine, _ = _read_object(path / "machine.json")  # no score depends on it: its absence needs no note
    metrics, metrics_notes = read_lines(path / "metrics.jsonl")
    result, result_notes = _read_object(path / "eval.json")
    options = {**flatten(Config()), **_flatten(config)} if config else {}
    target = _whole(options.get("train.interactions"))
    reached = _largest([*metrics, result], "interactions")
    last, last_notes = _last(result, reached if reached is not None else target)
    evaluations = {each.interactions: each for record in metrics if (each := _evaluation(record)) is not None}
    if last is not None:
        evaluations[last.interactions] = last
        if target is not None and last.interactions < target:
            last_notes.append(f"evaluated after {last.interactions:,} of {target:,} interactions: no final score")
    env, preset = config.get("env"), machine.get("preset", config.get("preset"))
    return RunRecord(
        path=path,
        env=env if isinstance(env, str) else None,
        seed=_whole(config.get("seed")),
        preset=preset if isinstance(preset, str) else None,
        options=options,
        evaluations=tuple(evaluations[count] for count in sorted(evaluations)),
        final=last if last is not None and (target is None or last.interactions >= target) else None,
        random_mean=_number(result.get("random_mean")),
        optimal_return=_number(result.get("optimal_return")),
        interactions=None if reached is None else int(reached),
        seconds=_largest([{_ELAPSED: result.get("seconds")}, *metrics], _ELAPSED),
        machine=machine,
        notes=(*config_notes, *metrics_notes, *result_notes, *last_notes),
    )


# --------------------------------------------------------------------------------------------------
# Parts of a record


def _evaluation(record: Mapping[str, Any]) -> Evaluation | None:
    count, mean = _whole(record.get("interactions")), _number(record.get("eval/score_mean"))
    if count is None or mean is None:
        return None
    low, high = (_number(record.get(f"eval/score_{bound}")) for bound in ("low", "high"))
    return Evaluation(count, mean, math.nan if low is None else low, math.nan if high is None else high)


def _last(result: Mapping[str, Any], reached: float | None) -> tuple[Evaluation | None, list[str]]:
    """The evaluation of eval.json: from its episodes where they are whole, else from its mean and bounds."""
    if not result:
        return None, []
    at = _whole(result.get("interactions", reached))
    if at is None:
        return None, ["eval.json does not say after how many interactions it was made, so its score is not used"]
    given = result.get("episodes")
    episodes = [_number(score) for score in given] if isinstance(given, list) else []
    scores = [score for score in episodes if score is not None]
    if scores and len(scores) == len(episodes):
        return Evaluation(at, *mean_interval(scores), len(scores)), []
    note = "eval.json has episode scores that are not numbers" if episodes else "eval.json lists no episode scores"
    mean, low, high = (_number(result.get(key)) for key in ("mean", "low", "high"))
    if mean is None:
        return None, [f"{note} and no mean, so there is no final score"]
    return Evaluation(at, mean, math.nan if low is None else low, math.nan if high is None else high), [note]


def _flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = math.inf if value == "inf" else value
    return flat


# --------------------------------------------------------------------------------------------------
# Files and numbers


def _require(path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"there is nothing at {path}: give a run directory, or a directory that holds some")


def _walk(path: Path) -> Iterable[tuple[str, list[str], list[str]]]:
    """``os.walk``, for which a single file is a directory with nothing else in it."""
    return os.walk(path) if path.is_dir() else [(str(path.parent), [], [path.name])]


def _read_object(path: Path) -> tuple[dict[str, Any], list[str]]:
    """A JSON object; an empty one and a note if there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, [f"{path.name} is missing"]
    except (OSError, ValueError) as error:
        return {}, [f"{path.name} cannot be read ({error})"]
    return (data, []) if isinstance(data, dict) else ({}, [f"{path.name} holds no JSON object"])


def read_lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The objects of a JSON Lines file. Half a line at the end is what a writer at work leaves: not worth a note."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return [], [f"{path.name} is missing"]
    except OSError as error:
        return [], [f"{path.name} cannot be read ({error})"]
    records, broken = [], 0
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif number < len(lines):
            broken += 1
    return records, [f"{path.name} has {broken} lines that cannot be read"] if broken else []


def _number(value: object) -> float | None:
    """A finite number, or None: true, "7", NaN and null are not measurements."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _largest(records: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The largest number under ``key``, if any record has one."""
    return max((value for record in records if (value := _number(record.get(key))) is not None), default=None)


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None


def _fresh(name: str, taken: Mapping[str, object] | Sequence[str]) -> str:
    """``name``, with a number behind it if it is taken."""
    if name not in taken:
        return name
    return next(f"{name} ({number})" for number in range(2, len(taken) + 3) if f"{name} ({number})" not in taken)
