"""Every ablation names real options, changes what the paper changed, and is recognised again."""

from __future__ import annotations

import math

import pytest

from twm.config import Config, ConfigError, flatten, validate, with_options
from twm.lab.ablations import ABLATIONS, BUDGETS, budget_ablation, budget_study, identify


def test_what_each_changes() -> None:
    assert {name: dict(ablation.overrides) for name, ablation in ABLATIONS.items()} == {
        "uniform-sampling": {"replay.temperature": math.inf},
        "no-rewards": {"world_model.rewards_in_input": False},
        "no-entropy-threshold": {"policy.entropy_coef": 0.001, "policy.entropy_threshold": 1.0},
        "history-4": {"world_model.sequence_length": 4},
        "policy-zh": {"policy.input": "zh"},
        "vanilla-transformer": {"world_model.memory": False},
    }


@pytest.mark.parametrize("name", ABLATIONS)
def test_applies_to_the_paper_preset_and_nothing_else_moves(name: str) -> None:
    ablation, base = ABLATIONS[name], Config()
    changed = ablation.apply(base)
    validate(changed)
    before, after = flatten(base), flatten(changed)
    assert {path: after[path] for path in after if after[path] != before[path]} == dict(ablation.overrides)
    assert identify(before, after) == ablation
    assert identify(after, before) is None
    assert "\n" not in ablation.description
    assert ablation.where


def test_budget_study_keeps_the_samples() -> None:
    study = budget_study()
    assert list(study) == ["budget-10K", "budget-25K", "budget-50K"]
    for count, ablation in zip(BUDGETS, study.values(), strict=True):
        changed = ablation.apply(Config())
        validate(changed)
        assert changed.train.interactions == count
        assert changed.train.samples == Config().train.samples
        assert identify(flatten(Config()), flatten(changed)) == ablation
    assert budget_ablation(1_500).name == "budget-1500"


def test_more_interactions_or_another_budget_are_no_ablation() -> None:
    base = flatten(Config())
    assert identify(base, base) is None
    assert identify(base, flatten(with_options(Config(), {"train.interactions": 200_000}))) is None
    other = with_options(Config(), {"train.interactions": 10_000, "train.samples": 1e8})
    assert identify(base, flatten(other)) is None
    assert identify(base, flatten(with_options(Config(), {"replay.temperature": 3.0}))) is None


def test_an_override_the_base_already_has_counts_as_fulfilled() -> None:
    base = with_options(Config(), {"policy.entropy_threshold": 1.0})
    found = identify(flatten(base), flatten(ABLATIONS["no-entropy-threshold"].apply(base)))
    assert found is not None
    assert found.name == "no-entropy-threshold"


def test_budget_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="at least 1 interaction, but got 0"):
        budget_ablation(0)
