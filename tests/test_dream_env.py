"""The dream as a Gymnasium environment: its checker is content, seeds repeat, ends are the model's."""

from __future__ import annotations

import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from twm import DreamEnv, load
from twm.config import ConfigError
from twm.envs import make_env
from twm.train.evaluate import load_agent, load_replay
from twm.world_model.world_model import WorldModel


def play(env: DreamEnv, seed: int, steps: int = 6) -> list[tuple[float, int]]:
    o, _ = env.reset(seed=seed)
    seen = [(0.0, int(o.sum()))]
    for t in range(steps):
        o, r, terminated, truncated, _ = env.step(np.int64(t % 3))
        seen.append((r, int(o.sum())))
        if terminated or truncated:
            break
    return seen


def test_gymnasiums_checker_finds_nothing(small_run: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(DreamEnv(small_run), skip_render_check=True)  # which wants a registered id


def test_the_newest_frame_can_be_shown(small_run: Path) -> None:
    env = DreamEnv(small_run, render_mode="rgb_array")
    o, _ = env.reset(seed=0)
    picture = env.render()
    assert picture is not None
    assert picture.shape == (16, 16, 3)
    assert np.array_equal(picture[:, :, 2], o[-1])
    assert DreamEnv(small_run).render() is None


def test_the_same_seed_dreams_the_same(small_run: Path) -> None:
    env = DreamEnv(small_run)
    assert play(env, 3) == play(DreamEnv(small_run), 3)
    assert play(env, 3) != play(env, 4)
    torch.manual_seed(0)
    before = torch.rand(1)
    torch.manual_seed(0)
    play(env, 3)
    assert torch.equal(before, torch.rand(1))  # the caller's random numbers are not touched


def test_starts_in_the_replay(small_run: Path) -> None:
    """Entry 5 of the replay, with the step before as context: what the world model says of it step by step."""
    agent, _, _ = load_agent(small_run)
    replay = load_replay(small_run, agent.spec)
    assert replay is not None
    assert not replay.is_episode_start[5]
    env = DreamEnv(small_run, temperature=0.0)
    o, _ = env.reset(options={"index": 5})
    step = replay.sequences([5], 0)
    expected = agent.world_model.imagine(step.o, [[2, 0]], past_a=step.a, past_r=step.r, temperature=0.0)
    assert np.array_equal(o, expected.o[0, 0].numpy())
    for t, a in enumerate((2, 0)):
        o, r, *_ = env.step(np.int64(a))
        assert r == pytest.approx(float(expected.r[0, t]), abs=1e-6)
        assert np.array_equal(o, expected.o[0, t + 1].numpy())


def test_starts_at_a_real_observation(small_run: Path) -> None:
    agent, config, _ = load_agent(small_run)
    real = make_env(config.env, config.env_options, training=True).reset(seed=0)
    env = DreamEnv(small_run)
    o, _ = env.reset(options={"observation": real})
    assert np.array_equal(o, agent.world_model.decode(agent.world_model.encode(torch.as_tensor(real[None])))[0].numpy())


def test_ends_where_the_model_says_and_at_the_horizon(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = DreamEnv(small_run, horizon=3)
    monkeypatch.setattr(WorldModel, "over", lambda self, gamma: gamma < -1)
    env.reset(seed=0)
    assert [env.step(np.int64(0))[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(np.int64(0))
    monkeypatch.setattr(WorldModel, "over", lambda self, gamma: gamma > -1)
    env.reset(seed=0)
    assert env.step(np.int64(0))[2:4] == (True, False)


def test_refusals(small_run: Path, tmp_path: Path) -> None:
    env = DreamEnv(small_run)
    with pytest.raises(ConfigError, match="entries 0 to 99, but a dream was to start at 100"):
        env.reset(options={"index": 100})
    with pytest.raises(ConfigError, match=r"expected an observation of shape \(2, 16, 16\)"):
        env.reset(options={"observation": np.zeros((1, 16, 16), np.uint8)})
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="expected an action from 0 to 2, got 3"):
        env.step(np.int64(3))
    with pytest.raises(ConfigError, match="horizon of at least 1"):
        DreamEnv(small_run, horizon=0)
    with pytest.raises(ConfigError, match="is not a run directory"):
        DreamEnv(tmp_path)


def test_load_gives_an_agent_that_acts(small_run: Path) -> None:
    agent = load(str(small_run), device="cpu")
    o = np.zeros(agent.spec.observation_shape, np.uint8)
    assert agent.act(o, temperature=0.0) in (0, 1, 2)
    assert agent.act(np.stack([o, o])).shape == (2,)
