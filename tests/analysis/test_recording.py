"""Fresh episodes: how many, how they end, repeatable, and without a trace in what was there before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import small

from twm.agent import build
from twm.analysis.recording import record
from twm.config import ConfigError
from twm.envs import env_spec

CONFIG = small()
EPISODE = 39  # steps of a game of Catch: five balls, seven rows to fall and one step between them


@pytest.fixture(scope="module")
def agent():  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    return build(small(policy__input="zh"), env_spec(CONFIG.env, CONFIG.env_options))


def test_whole_episodes_and_a_rest() -> None:
    episodes = record(CONFIG, 100, seed=0)
    assert [len(e) for e in episodes] == [EPISODE, EPISODE, 100 - 2 * EPISODE]
    assert [e.terminated for e in episodes] == [True, True, False]
    assert episodes[0].o.shape == (EPISODE, 2, 16, 16)
    assert set(np.flatnonzero(episodes[0].r)) == {6, 14, 22, 30, 38}  # a reward as each ball comes down


def test_the_stack_moves_with_the_steps() -> None:
    """The newest frame of one step is the older frame of the next; the first step repeats its frame."""
    (episode,) = record(CONFIG, 10, seed=1)
    np.testing.assert_array_equal(episode.o[1:, 0], episode.o[:-1, 1])
    np.testing.assert_array_equal(episode.o[0, 0], episode.o[0, 1])


def test_an_episode_that_ends_with_the_recording_is_whole() -> None:
    (episode,) = record(CONFIG, EPISODE, seed=0)
    assert episode.terminated


def test_a_time_limit_is_no_termination() -> None:
    episodes = record(small(env_options__max_steps=5), 10, seed=0)
    assert [(len(e), e.terminated) for e in episodes] == [(5, False), (5, False)]


def test_a_seed_repeats_and_another_differs(agent) -> None:  # type: ignore[no-untyped-def]
    for player in (None, agent):
        first, again, other = (record(CONFIG, 60, seed=seed, agent=player) for seed in (3, 3, 4))
        np.testing.assert_array_equal(first[0].a, again[0].a)
        np.testing.assert_array_equal(first[1].o, again[1].o)
        assert (first[0].a != other[0].a).any()


def test_recording_leaves_no_trace(agent) -> None:  # type: ignore[no-untyped-def]
    """Neither in torch's random numbers nor in what a policy on [z, h] remembers of its own game."""
    agent.forget()
    agent.act(np.zeros((2, 16, 16), np.uint8), restart=True)
    before, random = agent.state()["h"].clone(), torch.get_rng_state()
    record(CONFIG, 20, seed=0, agent=agent)
    torch.testing.assert_close(agent.state()["h"], before)
    assert torch.equal(torch.get_rng_state(), random)


def test_no_steps() -> None:
    with pytest.raises(ConfigError, match="at least 1 step, got 0"):
        record(CONFIG, 0, seed=0)
