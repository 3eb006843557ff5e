"""What a sweep consists of: one small file that names it completely, and the runs that follow from it.

    sweep.json   {"preset": "cpu", "envs": ["Krull", ...], "seeds": 5, "variants": {"base": {}, ...}, "set": {}, ...}
    runs/ENV/VARIANT/seedN/   one run directory each

The same file gives the same runs anywhere. A sweep may be extended by more games, seeds or variants; what its existing
runs were made with may not change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from twm import config as configuration
from twm.config import Config, ConfigError, Preset, flatten, validate, with_options
from twm.lab.ablations import ABLATIONS, budget_study
from twm.lab.scores import GAMES
from twm.train.files import read_json, reporting, write_json

BASE = "base"
LOCK = "sweep.lock"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    name: str  # ENV/VARIANT/seedN
    config: Config

    def directory(self, out: Path) -> Path:
        return out / "runs" / self.name


@dataclass(frozen=True)
class Plan:
    """A sweep, completely."""

    preset: str
    envs: tuple[str, ...]
    seeds: int
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {BASE: {}})
    set: Mapping[str, Any] = field(default_factory=dict)  # options of every run, by path
    cpus_per_run: int = 1
    gpus_per_run: float = 0.0

    def runs(self) -> list[PlannedRun]:
        """Every run, seeds last, so that a sweep that is stopped early has seen every game."""
        return [
            PlannedRun(f"{_file_name(env)}/{variant}/seed{seed}", self._config(env, overrides, seed))
            for seed in range(self.seeds)
            for variant, overrides in self.variants.items()
            for env in self.envs
        ]

    def _config(self, env: str, overrides: Mapping[str, Any], seed: int) -> Config:
        base = configuration.preset(self.preset)  # type: ignore[arg-type]
        # The number of threads is part of a run's numbers: a run of the sweep equals the same run alone.
        given = {"threads": self.cpus_per_run, **self.set, "env": env, "seed": seed}
        if not self.gpus_per_run:  # a machine's GPUs are not hidden from a run that asked for none
            given.setdefault("device", "cpu")
        return with_options(with_options(base, given), overrides)


def make_plan(
    *,
    preset: str,
    envs: Iterable[str],
    seeds: int,
    ablations: Iterable[str] = (),
    budgets: Iterable[int] = (),
    options: Mapping[str, Any] | None = None,
    cpus_per_run: int = 1,
    gpus_per_run: float = 0.0,
) -> Plan:
    """A plan from names: "all" for the 26 games, ablations of the paper, numbers of interactions for a budget study."""
    names = [game for env in envs for game in (GAMES if env == "all" else [env])]
    variants: dict[str, Mapping[str, Any]] = {BASE: {}}
    for name in ablations:
        if name not in ABLATIONS:
            raise ConfigError(f"unknown ablation {name!r}: expected one of {', '.join(ABLATIONS)}")
        _add(variants, name, dict(ABLATIONS[name].overrides))
    for name, ablation in budget_study(budgets).items():
        _add(variants, name, dict(ablation.overrides))
    return Plan(preset, tuple(names), seeds, variants, dict(options or {}), cpus_per_run, gpus_per_run)


def _add(variants: dict[str, Mapping[str, Any]], name: str, overrides: Mapping[str, Any]) -> None:
    if name in variants:
        raise ConfigError(f"{name} is named twice: each variant runs once, with as many seeds as you like")
    variants[name] = overrides


def check(plan: Plan) -> list[PlannedRun]:
    """The runs of a plan, each checked as ``twm train`` would; refuses what cannot work before anything starts."""
    from twm.envs import env_spec

    if plan.preset not in get_args(Preset):
        raise ConfigError(f"unknown preset {plan.preset!r}: expected one of {', '.join(get_args(Preset))}")
    if not plan.envs:
        raise ConfigError("a sweep needs at least one environment: give --envs, e.g. --envs Krull Boxing or --envs all")
    if plan.seeds < 1:
        raise ConfigError(f"a sweep needs at least 1 seed, but got {plan.seeds}")
    if plan.cpus_per_run < 1 or plan.gpus_per_run < 0:
        raise ConfigError(
            f"a run needs at least 1 CPU and no negative share of a GPU, but got {plan.cpus_per_run} "
            f"and {plan.gpus_per_run}"
        )
    runs = plan.runs()
    twice = [name for name, count in Counter(run.name.casefold() for run in runs).items() if count > 1]
    if twice:
        raise ConfigError(f"{len(twice)} runs would share a name, the first is {twice[0]}: name each environment once")
    _refuse_twins(plan)
    for env in plan.envs:
        env_spec(env, runs[0].config.env_options)
    for run in runs:
        validate(run.config)
    return runs


def _refuse_twins(plan: Plan) -> None:
    """A preset may already have what an ablation changes: the same runs twice would pass for two variants."""
    configs: dict[str, Config] = {}
    for name, overrides in plan.variants.items():
        config = plan._config(plan.envs[0], overrides, 0)
        same = [other for other, known in configs.items() if known == config]
        if same:
            raise ConfigError(
                f"{name} is the same as {same[0]} with the preset {plan.preset} and the options given: leave it out"
            )
        configs[name] = config


def record(plan: Plan, out: Path) -> None:
    """Write sweep.json, in the place of that of the same sweep, perhaps smaller."""
    refuse_foreign(plan, out)
    with reporting(f"cannot create the directory {out}"):
        out.mkdir(parents=True, exist_ok=True)
    write_json(out / "sweep.json", {key: _plain(value) for key, value in asdict(plan).items()})


def refuse_foreign(plan: Plan, out: Path) -> None:
    """Refuse a directory that holds something else, or a sweep that ``plan`` does not repeat or extend."""
    path = out / "sweep.json"
    if path.exists():
        _refuse_other(load(path), plan, path)
    elif out.exists() and (not out.is_dir() or any(found.name != LOCK for found in out.iterdir())):
        raise ConfigError(f"{out} is not empty and holds no sweep: choose a new or empty directory with --out")


def load(path: Path) -> Plan:
    """Read a sweep.json."""
    data = read_json(path)
    known = set(Plan.__dataclass_fields__)
    if not isinstance(data, dict) or not {"preset", "envs", "seeds"} <= set(data) <= known:
        raise ConfigError(
            f"{path} is not a sweep: expected an object with preset, envs, seeds and, optionally, "
            f"{', '.join(sorted(known - {'preset', 'envs', 'seeds'}))}"
        )
    for name, (holds, expected) in _FILE.items():
        if name in data and not holds(data[name]):
            raise ConfigError(f"{path} is not a sweep: {name} must be {expected}, but it is {data[name]!r}")
    return Plan(**{**data, "envs": tuple(data["envs"])})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_FILE: dict[str, tuple[Callable[[Any], bool], str]] = {
    "preset": (lambda value: isinstance(value, str), "a text"),
    "envs": (lambda value: isinstance(value, list) and all(isinstance(env, str) for env in value), "a list of texts"),
    "seeds": (_is_whole, "a whole number"),
    "variants": (
        lambda value: isinstance(value, dict) and all(isinstance(options, dict) for options in value.values()),
        "an object of objects, the options of each variant",
    ),
    "set": (lambda value: isinstance(value, dict), "an object, options by path"),
    "cpus_per_run": (_is_whole, "a whole number"),
    "gpus_per_run": (_is_number, "a number"),
}
"""What each field of a sweep.json must be: people write these files by hand."""


def _refuse_other(saved: Plan, given: Plan, path: Path) -> None:
    differing = [
        name
        for name, before, now in (
            ("--preset", saved.preset, given.preset),
            ("--set", {k: _plain(v) for k, v in saved.set.items()}, {k: _plain(v) for k, v in given.set.items()}),
            ("--cpus-per-run", saved.cpus_per_run, given.cpus_per_run),
        )
        if before != now
    ]
    differing += [
        f"the options of {name}"
        for name, before in saved.variants.items()
        if name in given.variants and _plain(before) != _plain(given.variants[name])
    ]
    missing = [f"--envs {env}" for env in saved.envs if env not in given.envs]
    missing += [f"--ablation {name}" for name in saved.variants if name not in given.variants]
    missing += [f"--seeds {saved.seeds}"] if given.seeds < saved.seeds else []
    if differing or missing:
        what = "; ".join(
            ([f"differs in {', '.join(differing)}"] if differing else [])
            + ([f"lacks {', '.join(missing)}"] if missing else [])
        )
        raise ConfigError(
            f"{path} describes another sweep (the one given {what}): choose another --out, or give its options and "
            "only add to them"
        )


def _plain(value: Any) -> Any:
    """Infinity is no JSON; options take it as a text."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def _file_name(env: str) -> str:
    return env.replace("/", "-").replace(":", "-")


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """``["replay.temperature=5"]`` as options by path, checked against those that exist."""
    options: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        path = path.strip().removeprefix("--").replace("-", "_")
        if not equals or not value:
            raise ConfigError(f"--set takes path=value, e.g. --set replay.temperature=5, but got {text!r}")
        if path in ("env", "seed"):
            raise ConfigError(f"--set cannot set {path}: use --envs and --seeds")
        options[path] = flatten(with_options(Config(), {path: value}))[path]  # raises with the nearest names
    return options
