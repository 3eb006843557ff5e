from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from twm.analysis.sampling import LazySampler, first_half_share, half_time_entry, share_of_time, simulate
from twm.config import ConfigError
from twm.replay import draw_balanced

# The paper's schedule at a tenth of its length: as many visits per entry, so the same shares.
TENTH = {"interactions": 10_000, "prefill": 500, "updates": 12_500, "pretraining": 658}


# --- Statistics


def test_shares_by_hand() -> None:
    """Visits 4 2 1 1: half of the time is the first entry's; the first two took 6 of 8."""
    visits = np.array([4, 2, 1, 1])
    assert share_of_time(visits).tolist() == [0.5, 0.75, 0.875, 1.0]
    assert half_time_entry(visits) == 1
    assert half_time_entry(np.array([3, 2, 2, 1])) == 2
    assert half_time_entry(np.array([0, 0, 7])) == 3
    assert first_half_share(visits) == 0.75


def test_an_odd_middle_entry_counts_half() -> None:
    assert first_half_share(np.array([1, 2, 5])) == 0.25
    assert first_half_share(np.array([3])) == 0.5


@pytest.mark.parametrize("visits", [[], [0, 0]])
def test_no_visits_no_shares(visits: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"no entry has been visited.*\n  train first"):
        share_of_time(np.array(visits, np.int32))


# --- Drawing


def chi_squared(observed: npt.NDArray[np.int64], p: npt.NDArray[np.float64]) -> float:
    expected = p * observed.sum()
    return float(((observed - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(("temperature", "surplus"), [(1.0, 8), (1.0, 0), (4.0, 0), (math.inf, 0)])
def test_one_draw_matches_the_formula(temperature: float, surplus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs out of six entries, four of them in the shared process, with counts that have grown since the last look;
    with few arrivals generated, those that did not arrive often race on.
    P({i, j}) = p_i p_j / (1 - p_i) + p_j p_i / (1 - p_j). The 99.9 % point of χ² with 14 degrees of freedom is 36.1."""
    monkeypatch.setattr(LazySampler, "SURPLUS", surplus)
    monkeypatch.setattr(LazySampler, "BLOCK", 1)
    seen, grown = np.array([3, 1, 0, 2, 0, 0]), np.array([4, 1, 2, 3, 1, 0])
    sampler = LazySampler(6, 2, temperature, np.random.default_rng(0), newest=2)
    sampler.visits[:] = seen
    observed = np.zeros((6, 6), np.int64)
    for _ in range(5_000):
        sampler.visits[:] = seen
        sampler._look(4)
        sampler.visits[:] = grown
        i, j = np.sort(sampler.draw(6))
        observed[i, j] += 1
    w = np.exp(-grown / temperature)
    p = w / w.sum()
    ordered = p[:, None] * p[None, :] / (1 - p[:, None])
    pairs = np.triu_indices(6, k=1)
    assert observed[pairs].sum() == 5_000
    assert chi_squared(observed[pairs], (ordered + ordered.T)[pairs]) < 36.1


@pytest.mark.parametrize("temperature", [0.05, 1.0, 5.0, math.inf])
def test_growing_dataset_matches_the_replays_own_draws(temperature: float) -> None:
    """The same small schedule, 25 times with the simulation and 25 times with the replay's sampling: mean visits of
    blocks of entries agree within four standard errors of the difference, and no entry is drawn twice in a batch."""

    def blocks(lazy: bool, seed: int) -> npt.NDArray[np.float64]:
        rng = np.random.default_rng(seed)
        sampler = LazySampler(120, 8, temperature, rng, newest=10)
        visits = sampler.visits if lazy else np.zeros(120, np.int32)
        for size in range(30, 120):
            for _ in range(3):
                chosen = sampler.draw(size) if lazy else draw_balanced(visits[:size], 8, temperature, rng)
                assert len(np.unique(chosen)) == 8
                assert chosen.max() < size
                if not lazy:
                    visits[chosen] += 1
        assert visits.sum() == 90 * 3 * 8
        means: npt.NDArray[np.float64] = visits.reshape(6, 20).mean(axis=1)
        return means

    mine = np.stack([blocks(True, seed) for seed in range(25)])
    exact = np.stack([blocks(False, 1000 + seed) for seed in range(25)])
    error = np.sqrt((mine.var(axis=0) + exact.var(axis=0)) / 25) + 1e-9
    assert np.all(np.abs(mine.mean(axis=0) - exact.mean(axis=0)) <= 4 * error)


# --- The paper's schedule


def test_schedule_bounds() -> None:
    """Every update draws its batch; the first entry and the last ℓ are no starts; a seed repeats."""
    schedule = {"interactions": 300, "prefill": 60, "updates": 200, "pretraining": 10}
    visits = simulate(20.0, **schedule, batch_size=20, sequence_length=16, seed=3)
    assert visits.shape == (300,)
    assert visits.sum() == 210 * 20
    assert visits[0] == 0
    assert not visits[300 - 16 :].any()
    again = simulate(20.0, **schedule, batch_size=20, sequence_length=16, seed=3)
    np.testing.assert_array_equal(visits, again)


def test_everything_on_the_prefill_is_exact() -> None:
    """Without further updates all visits lie on the prefill's 43 starts: 1..60 - 16 - 1."""
    visits = simulate(math.inf, interactions=100, prefill=60, updates=0, pretraining=43, batch_size=43)
    assert visits.tolist() == [0] + [43] * 43 + [0] * 56


def test_uniform_sampling_spends_half_of_the_time_on_the_first_19_percent() -> None:
    """x (1 - ln x) = ½ at x = 0.1867; half of the entries take 0.5 (1 + ln 2) = 0.847 of the time."""
    visits = simulate(math.inf, **TENTH)
    assert half_time_entry(visits) / 10_000 == pytest.approx(0.1867, abs=0.003)
    assert first_half_share(visits) == pytest.approx(0.847, abs=0.003)


@pytest.mark.parametrize(("pretraining", "half"), [(0, 0.202), (2_812, 0.141)])
def test_other_readings_of_pretraining_miss_the_paper(pretraining: int, half: float) -> None:
    """Without pretraining x - 0.05 - x ln x = 0.475, at x = 0.202; with all its world model batches 0.141."""
    visits = simulate(math.inf, **(TENTH | {"pretraining": pretraining}))
    assert half_time_entry(visits) / 10_000 == pytest.approx(half, abs=0.003)


def test_temperature_20_spends_about_the_same_time_on_both_halves() -> None:
    visits = simulate(20.0, **TENTH)
    assert 0.5 < first_half_share(visits) < 0.6


@pytest.mark.slow
def test_the_papers_figure() -> None:
    """Paper, figure "sampling": with uniform sampling half of the time goes to the first 19K of 100K entries, with
    τ = 20 about the same time to both halves."""
    uniform = simulate(math.inf)
    assert uniform.sum() == (125_000 + 6_579) * 100
    assert round(half_time_entry(uniform) / 1000) == 19
    assert first_half_share(simulate(20.0)) == pytest.approx(0.573, abs=0.005)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_bad_temperature(temperature: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        simulate(temperature)


@pytest.mark.parametrize("prefill", [116, 201])
def test_bad_prefill(prefill: int) -> None:
    with pytest.raises(ConfigError, match=rf"prefill between 117 steps and all 200 interactions, got {prefill}"):
        simulate(20.0, interactions=200, prefill=prefill)
