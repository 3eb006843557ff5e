"""Catch: the known answer is the true one, and one frame shows the whole state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twm.config import ConfigError, EnvConfig
from twm.envs import make_env
from twm.envs.catch import BALLS, Catch

LEFT, STAY, RIGHT = range(3)


def catch(**options: Any) -> Catch:
    return Catch(EnvConfig(**{"size": 16, "stack": 1, **options}))


def play(env: Catch, policy: Callable[[Any], int], seed: int | None = None) -> list[float]:
    """The rewards of one episode."""
    o, rewards = env.reset(seed=seed), []
    while True:
        step = env.step(policy(o))
        o = step.observation
        rewards.append(step.reward)
        if step.terminated:
            assert step.game_over
            assert not step.truncated
            return rewards


def follow_the_ball(o: Any) -> int:
    """The best policy, from the pixels of the newest frame alone."""
    cells = o[-1, ::2, ::2]
    ball = int(np.argwhere(cells == 255)[0, 1])
    paddle = np.argwhere(cells == 160)
    if not len(paddle):  # hidden by the ball it has just caught
        return STAY
    return STAY + int(np.sign(ball - int(paddle[0, 1])))


def test_following_the_ball_gives_exactly_the_optimal_return() -> None:
    env = catch()
    for seed in range(100):
        rewards = play(env, follow_the_ball, seed)
        assert sum(rewards) == env.spec.optimal_return == 5.0
        # Seven steps down for the first ball; eight for the others, which first have to appear.
        assert [i for i, r in enumerate(rewards) if r] == [6, 14, 22, 30, 38]
        assert len(rewards) == 39


def test_a_policy_that_does_not_look_is_far_below() -> None:
    """Each ball is caught with probability 1/7 whatever the paddle does: -25/7 = -3.571 (standard error 0.08)."""
    env, rng = catch(), np.random.default_rng(0)
    env.reset(seed=0)
    returns = [sum(play(env, lambda o: int(rng.integers(3)))) for _ in range(400)]
    assert abs(np.mean(returns) + 25 / 7) < 0.3
    assert min(returns) == -BALLS


def test_a_frame_by_hand() -> None:
    """Four balls to come (marks on the left, from the bottom), the paddle in the middle, the ball at the top."""
    env = catch()
    cells = env.reset(seed=0)[0, ::2, ::2]
    assert cells[:, 0].tolist() == [0, 0, 0, 0, 80, 80, 80, 80]
    assert cells[7, 1:].tolist() == [0, 0, 0, 160, 0, 0, 0]
    assert sorted(cells[0, 1:].tolist()) == [0, 0, 0, 0, 0, 0, 255]
    cells = env.step(LEFT).observation[0, ::2, ::2]
    assert cells[7, 1:].tolist() == [0, 0, 160, 0, 0, 0, 0]
    assert sorted(cells[1, 1:].tolist()) == [0, 0, 0, 0, 0, 0, 255]
    assert not cells[0].any()


def test_the_paddle_stops_at_the_walls() -> None:
    env = catch()
    env.reset(seed=0)
    for _ in range(5):
        o = env.step(LEFT).observation
    assert o[0, 14, 2:4].tolist() == [160, 160]


@pytest.mark.parametrize("size", [16, 23, 64])
@pytest.mark.parametrize("gray", [True, False])
def test_sizes_and_colors(size: int, gray: bool) -> None:
    env = catch(size=size, gray=gray, stack=3)
    o = env.reset(seed=0)
    channels = 1 if gray else 3
    assert o.shape == env.spec.observation_shape == (3 * channels, size, size)
    assert o.dtype == np.uint8
    colors = {tuple(pixel) for pixel in o[-channels:].reshape(channels, -1).T.tolist()}
    assert len(colors) == 4  # background, marks, paddle, ball: nothing in between
    assert env.spec.actions == ("LEFT", "STAY", "RIGHT")
    assert env.render().shape == (256, 256, 3)


def test_a_stack_holds_the_last_frames_of_this_episode_only() -> None:
    env = catch(stack=2)
    first = env.reset(seed=0)
    assert np.array_equal(first[0], first[1])
    second = env.step(STAY).observation
    assert np.array_equal(second[0], first[1])
    again = env.reset()
    assert np.array_equal(again[0], again[1])


def test_time_limit() -> None:
    env = catch(max_steps=3)
    env.reset(seed=0)
    steps = [env.step(STAY) for _ in range(3)]
    assert [(s.terminated, s.truncated, s.game_over) for s in steps] == [
        (False,) * 3,
        (False,) * 3,
        (False, True, True),
    ]
    with pytest.raises(RuntimeError, match="reset"):
        env.step(STAY)


def test_the_same_seed_is_the_same_game() -> None:
    def balls(seed: int) -> list[float]:
        return [r for _ in range(4) for r in play(env, lambda o: STAY, seed if _ == 0 else None)]

    env = catch()
    assert balls(3) == balls(3)
    assert balls(3) != balls(4)


@given(before=st.lists(st.integers(0, 2), max_size=100), after=st.lists(st.integers(0, 2), min_size=1, max_size=100))
def test_a_restored_game_goes_on_bit_for_bit(before: list[int], after: list[int]) -> None:
    def run(env: Catch, actions: list[int]) -> list[Any]:
        seen = []
        for a in actions:
            step = env.step(a)
            seen.append((step.observation.tobytes(), *step[1:]))
            if step.terminated:
                seen.append(env.reset().tobytes())
        return seen

    env, other = catch(stack=2), catch(stack=2)
    env.reset(seed=1)
    run(env, before)
    state = env.save()
    expected = run(env, after)
    assert np.array_equal(other.restore(state), state["stack"])
    assert run(other, after) == expected


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 16 pixels, but it is 12"):
        make_env("Catch", EnvConfig(size=12), training=True)
    env = catch()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="from 0 to 2"):
        env.step(3)
    with pytest.raises(ConfigError, match="stack"):
        catch(stack=4).restore(env.save())
