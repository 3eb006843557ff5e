"""Environments in lock-step: the same as each alone, in this process or in others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from twm.config import ConfigError, EnvConfig
from twm.envs import Env, make_env
from twm.envs.vector import VectorEnv


def make(name: str, count: int, **options: Any) -> list[Env]:
    return [make_env(name, EnvConfig(**{"size": 16, "stack": 2, **options}), training=False) for _ in range(count)]


def check_against_each_alone(name: str, cores: int, steps: int, **options: Any) -> None:
    alone = make(name, 4, **options)
    rng = np.random.default_rng(0)
    with VectorEnv(make(name, 4, **options), cores=cores) as vector:
        for rows in (4, 2):
            seeds = list(range(10, 10 + rows))
            o = vector.reset(seeds)
            expected = np.stack([env.reset(seed=seed) for env, seed in zip(alone, seeds)])
            assert o.dtype == expected.dtype
            assert np.array_equal(o, expected)
            active = np.ones(rows, np.bool_)
            for t in range(steps):
                actions = rng.integers(vector.spec.num_actions, size=rows)
                step = vector.step(actions, active)
                for i in range(rows):
                    if not active[i]:
                        assert np.array_equal(step.observations[i], expected[i])
                        assert not any(part[i] for part in step[1:])
                        continue
                    single = alone[i].step(int(actions[i]))
                    expected[i] = single.observation
                    assert np.array_equal(step.observations[i], single.observation)
                    assert tuple(part[i] for part in step[1:]) == single[1:]
                active &= ~step.game_over & (np.arange(rows) != t)  # the caller may also leave some out
                if not active.any():
                    break


def test_catch() -> None:
    check_against_each_alone("Catch", 2, 45)


@pytest.mark.parametrize("cores", [1, 3])
def test_atari(cores: int) -> None:
    pytest.importorskip("ale_py")
    check_against_each_alone("Breakout", cores, 15)


def test_to_look_later_changes_nothing() -> None:
    """Also where a life is lost and FIRE pressed within a step, which shows the player two screens."""
    pytest.importorskip("ale_py")
    alone = make("Breakout", 3, size=64)
    rng, frames_of_a_step = np.random.default_rng(0), set()
    with VectorEnv(make("Breakout", 3, size=64), cores=1) as vector:
        before = vector.reset([1, 2, 3])
        for i, env in enumerate(alone):
            assert np.array_equal(env.reset(seed=i + 1), before[i])
        for _ in range(120):
            actions = rng.integers(4, size=3)
            observations = vector.step(actions).observations
            for i, env in enumerate(alone):
                assert np.array_equal(env.step(int(actions[i])).observation, observations[i])
                frames_of_a_step.add(np.array_equal(observations[i][0], before[i][1]))
            before = observations
    assert frames_of_a_step == {True, False}  # False: two new frames at once


def test_vectors_of_numbers() -> None:
    pytest.importorskip("gymnasium")
    check_against_each_alone("CartPole-v1", 2, 30)


def test_only_games_worth_it_move_to_workers() -> None:
    with VectorEnv(make("Catch", 3), cores=2) as vector:
        assert len(vector.envs) == 3
        assert vector.worker_ids == []


def test_no_more_processes_than_cores_given() -> None:
    pytest.importorskip("ale_py")
    with VectorEnv(make("Breakout", 3), cores=1) as vector:
        assert vector.worker_ids == []
    with VectorEnv(make("Breakout", 3), cores=2) as vector:
        assert len(vector.worker_ids) == 1


def test_observations_once_given_stay_as_they_were() -> None:
    vector = VectorEnv(make("Catch", 2))
    first = vector.reset([0, 1])
    kept = first.copy()
    second = vector.step([1, 1]).observations
    vector.step([1, 1])
    assert np.array_equal(first, kept)
    assert not np.array_equal(first, second)


def test_bad_calls_are_refused_before_anything_moves() -> None:
    vector = VectorEnv(make("Catch", 2))
    first = vector.reset([0, 1])
    for actions, told in [([0, 3], "from 0 to 2"), ([0.5, 1.0], "from 0 to 2"), ([0], "expected 2 actions")]:
        with pytest.raises(ConfigError, match=told):
            vector.step(actions)
    fresh = VectorEnv(make("Catch", 2))
    assert np.array_equal(fresh.reset([0, 1]), first)
    assert np.array_equal(vector.step([0, 2]).observations, fresh.step([0, 2]).observations)
    with pytest.raises(ConfigError, match="1 to 2 seeds"):
        vector.reset([0, 1, 2])
    with pytest.raises(ConfigError, match="at least one environment"):
        VectorEnv([])


def test_a_failing_worker_is_reported_and_ends() -> None:
    """Its environment's error arrives here, and no process stays behind."""
    pytest.importorskip("ale_py")
    vector = VectorEnv(make("Breakout", 2, max_steps=1), cores=2)
    process = vector._workers[0]._process
    vector.reset([0, 1])
    assert vector.step([0, 0]).game_over.all()
    with pytest.raises(RuntimeError, match="environment worker: RuntimeError: Breakout: no episode is running"):
        vector.step([0, 0], [False, True])
    assert process.poll() is not None
    with pytest.raises(RuntimeError, match="has ended"):
        vector.step([0, 0], [False, True])
    vector.close()
