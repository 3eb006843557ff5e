"""The paper's ablations as named changes of options: one name each for sweeps, tables and figures.

An ablation is a set of overrides by option path, e.g. ``{"replay.temperature": inf}``; everything else stays
as in the configuration it is applied to, so the same names work on every preset. The paper ran them on
"a random subset of games" which it names only in part, so no games are listed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from twm.config import Config, ConfigError, with_options


@dataclass(frozen=True)
class Ablation:
    """What to change, why, and where the paper shows it."""

    name: str
    title: str
    overrides: Mapping[str, Any]
    description: str
    where: str

    def apply(self, config: Config) -> Config:
        """``config`` with this ablation's options; whether the result can work is for ``twm.config.validate``."""
        return with_options(config, self.overrides)


def _ablation(name: str, title: str, overrides: dict[str, Any], description: str, where: str) -> Ablation:
    return Ablation(name, title, MappingProxyType(overrides), description, where)


ABLATIONS: Mapping[str, Ablation] = MappingProxyType(
    {
        ablation.name: ablation
        for ablation in (
            _ablation(
                "uniform-sampling",
                "Uniform sampling (τ = ∞)",
                {"replay.temperature": math.inf},
                "Draw training sequences uniformly instead of preferring entries that were visited less.",
                "section 3.3, Uniform Sampling",
            ),
            _ablation(
                "no-rewards",
                "No rewards in the input",
                {"world_model.rewards_in_input": False},
                "Leave the rewards out of what the transformer sees; they are still predicted.",
                "section 3.3, No Rewards",
            ),
            _ablation(
                "no-entropy-threshold",
                "No entropy threshold (η = 0.001, Γ = 1)",
                {"policy.entropy_coef": 0.001, "policy.entropy_threshold": 1.0},
                "The usual entropy penalty, active at every entropy, with a smaller coefficient.",
                "appendix, Additional Ablation Studies, Thresholded Entropy Loss",
            ),
            _ablation(
                "history-4",
                "History of 4 steps (ℓ = 4)",
                {"world_model.sequence_length": 4},
                "A shorter history; an update then costs fewer samples, so the same budget buys more updates.",
                "appendix, Additional Ablation Studies, History Length",
            ),
            _ablation(
                "policy-zh",
                "Policy on [z, h]",
                {"policy.input": "zh"},
                "Actor and critic see the transformer's hidden state beside the latent state.",
                "appendix, Additional Ablation Studies, Choice of Policy Input",
            ),
            _ablation(
                "vanilla-transformer",
                "Vanilla transformer",
                {"world_model.memory": False},
                "No memory of keys and values: every imagined step recomputes its window.",
                "appendix, Wall-Clock Times (the paper compares its speed)",
            ),
        )
    }
)
"""The paper's ablations by name; fewer interactions are :func:`budget_ablation`, which takes a number."""

BUDGETS = (10_000, 25_000, 50_000)
"""Interactions of the paper's study with fewer interactions and the full training budget."""


def budget_ablation(interactions: int) -> Ablation:
    """Fewer interactions, the same training budget: ``train.samples`` stays, so each interaction buys more updates."""
    if interactions < 1:
        raise ConfigError(f"a budget study needs at least 1 interaction, but got {interactions}")
    return _ablation(
        f"budget-{_count(interactions)}",
        f"{interactions:,} interactions, same budget",
        {"train.interactions": interactions},
        f"Stop playing after {interactions:,} interactions but train with the full budget of samples.",
        "appendix, Additional Ablation Studies, Increasing the Sample Efficiency",
    )


def is_budget(name: str) -> bool:
    """Whether an ablation's name is one that :func:`budget_ablation` gives."""
    return name.startswith("budget-")


def budget_study(interactions: Iterable[int] = BUDGETS) -> dict[str, Ablation]:
    """One :func:`budget_ablation` for each number of interactions, by name."""
    study = [budget_ablation(count) for count in interactions]
    return {ablation.name: ablation for ablation in study}


def identify(base: Mapping[str, Any], other: Mapping[str, Any]) -> Ablation | None:
    """The ablation that turns the flat options ``base`` into ``other``, if one does and nothing else differs.

    Overrides that change nothing count as fulfilled (a base that already has Γ = 1 differs by η alone).
    Fewer interactions with the same samples are recognised for every number, not only the paper's.
    """
    changed = {path: other.get(path) for path in {*base, *other} if base.get(path) != other.get(path)}
    if not changed:
        return None
    for ablation in ABLATIONS.values():
        if changed == {path: value for path, value in ablation.overrides.items() if base.get(path) != value}:
            return ablation
    if set(changed) == {"train.interactions"} and other["train.interactions"] < base["train.interactions"]:
        return budget_ablation(other["train.interactions"])
    return None


def _count(number: int) -> str:
    return f"{number // 1000}K" if number % 1000 == 0 else str(number)
