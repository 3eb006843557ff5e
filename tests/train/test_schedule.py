"""The paper's budget in numbers."""

from __future__ import annotations

import pytest

from twm.config import Config, preset, samples_per_update, with_options
from twm.train.schedule import make_schedule, with_interactions


def test_the_papers_schedule() -> None:
    """7,600 samples an update; 950M buy 125,000 updates; 50M for pretraining at 1,600 an update: 60, 30, 10 %."""
    schedule = make_schedule(Config())
    assert samples_per_update(Config()) == 100 * 16 + 400 * 15 == 7_600
    assert schedule.updates == 125_000
    assert schedule.pretrain_observation == 18_750
    assert schedule.pretrain_dynamics == 9_375
    assert schedule.pretrain_policy == 3_125
    assert (schedule.prefill, schedule.interactions) == (5_000, 100_000)


def test_shares_of_pretraining_add_up() -> None:
    """The released code gave 1 - 0.6 + 0.3 = 0.7 to the policy; the three shares were meant to make 1."""
    schedule = make_schedule(Config())
    spent = schedule.pretrain_observation + schedule.pretrain_dynamics + schedule.pretrain_policy
    assert spent * 100 * 16 == 50_000_000


def test_updates_are_spread_evenly() -> None:
    """One every 0.76 interactions, none during the prefill, all of them at the end."""
    schedule = make_schedule(Config())
    assert [schedule.updates_due(n) for n in (0, 4_999, 5_000, 5_001, 5_019, 100_000)] == [0, 0, 0, 1, 25, 125_000]
    due = [schedule.updates_due(n) for n in range(5_000, 100_001)]
    assert {b - a for a, b in zip(due, due[1:])} == {1, 2}
    assert 95_000 / 125_000 == 0.76


@pytest.mark.parametrize("interactions", [10_000, 25_000, 50_000])
def test_same_budget_with_fewer_interactions(interactions: int) -> None:
    """The paper's last ablation: the same 10⁹ samples, so the same updates."""
    schedule = make_schedule(with_options(Config(), {"train.interactions": interactions}))
    assert schedule.updates == 125_000
    assert schedule.updates_due(interactions) == 125_000


def test_a_longer_run_keeps_its_updates_per_interaction() -> None:
    longer = with_interactions(Config(), 195_000)
    schedule = make_schedule(longer)
    assert longer.train.samples == pytest.approx(50e6 + 2 * 950e6)
    assert schedule.updates == 250_000
    before = make_schedule(Config())
    assert [schedule.updates_due(n) for n in (5_100, 50_000, 100_000)] == [
        before.updates_due(n) for n in (5_100, 50_000, 100_000)
    ]


def test_edges() -> None:
    """No pretraining, everything on one part, and a run that is all prefill."""
    none = make_schedule(with_options(Config(), {"train.pretrain_samples": 0}))
    assert (none.pretrain_observation, none.pretrain_dynamics, none.pretrain_policy) == (0, 0, 0)
    assert none.updates == int(1e9 / 7_600)
    shares = {"train.pretrain_observation": 0.7, "train.pretrain_dynamics": 0.3}
    assert make_schedule(with_options(Config(), shares)).pretrain_policy == 0
    random_only = make_schedule(with_options(Config(), {"train.interactions": 5_000}))
    assert random_only.updates_due(5_000) == 0


@pytest.mark.parametrize("name", ["cpu", "tiny"])
def test_presets_spend_their_budget(name: str) -> None:
    config = preset(name)  # type: ignore[arg-type]
    schedule = make_schedule(config)
    assert schedule.updates_due(config.train.interactions) == schedule.updates
    spent = schedule.updates * samples_per_update(config)
    assert 0 <= config.train.samples - config.train.pretrain_samples - spent < samples_per_update(config)
