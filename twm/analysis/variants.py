"""Runs grouped by method: everything that may change a result except the game and the seed is equal within one.

A variant is named after the preset it comes from and what differs from it ("cpu preset", "cpu preset ·
uniform-sampling", "tiny preset · world_model.layers=4"), so a label never promises more than the configuration holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from twm import config
from twm.analysis.runs import Evaluation, RunRecord
from twm.lab import scores
from twm.lab.ablations import Ablation, identify

NOT_METHOD = frozenset(
    {
        *("env", "seed", "device", "compile", "threads"),
        *("train.log_every", "train.checkpoint_every"),
        *("train.eval_every", "train.eval_episodes", "train.final_episodes"),
    }
)
"""Options that say where a run happens and how it is watched, not how it learns."""


@dataclass(frozen=True)
class Variant:
    """Runs that differ by game and seed only."""

    label: str
    preset: str  # the one it comes from
    options: Mapping[str, Any]
    runs: tuple[RunRecord, ...]

    @property
    def envs(self) -> tuple[str, ...]:
        return tuple(sorted({run.env for run in self.runs if run.env is not None}))

    @property
    def interactions(self) -> int:
        """Interactions of a whole run."""
        return int(self.options["train.interactions"])

    def on(self, env: str) -> tuple[RunRecord, ...]:
        return tuple(run for run in self.runs if run.env == env)

    def final_scores(self, env: str) -> list[float]:
        """Mean score of each finished run."""
        return [run.final.mean for run in self.on(env) if run.final is not None]

    def normalised(self) -> dict[str, list[float]]:
        """{game: human-normalised final scores} of the benchmark games that have finished runs."""
        return {
            game: [scores.normalise(game, score) for score in finals]
            for game in scores.GAMES
            if (finals := self.final_scores(game))
        }

    def changes(self) -> str:
        """All options in which it differs from its preset, for a note; empty if none."""
        changed = _changed(_PRESETS[self.preset], self.options)
        return ", ".join(f"{path}={_short(self.options.get(path))}" for path in changed)


class Pair(NamedTuple):
    """Two variants between which one ablation is the only difference, and the environments both ran on."""

    ablation: Ablation
    base: Variant
    ablated: Variant
    envs: tuple[str, ...]


def group(runs: Iterable[RunRecord]) -> tuple[list[Variant], list[str]]:
    """Variants, those with most runs first; and notes on runs that belong to none or occur twice."""
    groups: dict[tuple[tuple[str, str], ...], dict[tuple[str, int | None, Path | None], RunRecord]] = {}
    notes: list[str] = []
    for run in sorted(runs, key=lambda run: (run.final is None, run.path)):  # of twins the finished one is kept
        if run.env is None or run.target is None:
            notes.append(f"{run.name}: left out, its configuration is missing or unreadable")
            continue
        method = _fingerprint(run.options)
        members = groups.setdefault(method, {})
        key = (run.env, run.seed, run.path if run.seed is None else None)
        if key in members:
            notes.append(
                f"{run.name}: left out, the same configuration, game and seed as {members[key].name}; "
                "counting both would make the results look surer than they are"
            )
        else:
            members[key] = run
    variants: list[Variant] = []
    for runs_of_one in sorted((list(members.values()) for members in groups.values()), key=len, reverse=True):
        options = _method(runs_of_one[0].options)
        preset = _preset_of(options, runs_of_one[0].preset)
        label = _unique(_label(options, preset), [variant.label for variant in variants])
        variants.append(Variant(label, preset, options, tuple(sorted(runs_of_one, key=lambda run: run.path))))
    return variants, notes


def pairs(variants: Sequence[Variant]) -> list[Pair]:
    """Every pair of variants that one of the paper's ablations turns into each other."""
    found = []
    for base in variants:
        for other in variants:
            ablation = identify(base.options, other.options)
            if ablation is not None:
                found.append(Pair(ablation, base, other, tuple(env for env in base.envs if env in other.envs)))
    return found


def ablated(variants: Sequence[Variant]) -> set[tuple[str, str]]:
    """(environment, label) of variants that are an ablation of another one that ran there, too."""
    return {(env, pair.ablated.label) for pair in pairs(variants) for env in pair.envs}


def at(run: RunRecord, interactions: int) -> Evaluation | None:
    """The run's evaluation at so many interactions; one up to 1 % earlier counts, as an interval may not divide."""
    near = [each for each in run.evaluations if 0.99 * interactions <= each.interactions <= interactions]
    return near[-1] if near else None


def _method(options: Mapping[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in options.items() if path not in NOT_METHOD}


def _fingerprint(options: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """A key for equal methods; 1000000000 and 1e9 are the same number, true and 1 are not the same choice."""
    return tuple(
        sorted(
            (path, repr(float(value) if isinstance(value, int) and not isinstance(value, bool) else value))
            for path, value in _method(options).items()
        )
    )


def _preset_of(options: Mapping[str, Any], preset: str | None) -> str:
    """The preset a run says it came from, or else the one with the fewest options changed."""
    if preset in _PRESETS:
        return str(preset)
    return min(_PRESETS, key=lambda name: len(_changed(_PRESETS[name], options)))


def _label(options: Mapping[str, Any], preset: str) -> str:
    """The preset and what differs from it, in as few words as are true."""
    changed = _changed(_PRESETS[preset], options)
    ablation = identify(_PRESETS[preset], options)
    if not changed:
        return f"{preset} preset"
    if ablation is not None:
        return f"{preset} preset · {ablation.name}"
    if len(changed) <= 2:
        return f"{preset} preset · " + ", ".join(f"{path}={_short(options.get(path))}" for path in changed)
    return f"{preset} preset · {len(changed)} options changed"


def _changed(base: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted(path for path in {*base, *other} if base.get(path) != other.get(path))


_PRESETS: dict[str, dict[str, Any]] = {
    name: _method(config.flatten(config.preset(name))) for name in get_args(config.Preset)
}


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _unique(label: str, taken: Sequence[str]) -> str:
    """Two variants can get one label ("cpu preset · 3 options changed"): number them, the notes say what each is."""
    same = sum(other == label or other.startswith(f"{label} #") for other in taken)
    return f"{label} #{same + 1}" if same else label
