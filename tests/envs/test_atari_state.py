"""Atari saved and restored: every frame, reward and flag that follows is the same."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twm.config import ConfigError, EnvConfig
from twm.envs import make_env
from twm.envs.atari import ATARI_100K, Atari

pytest.importorskip("ale_py")


def digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array)).hexdigest()[:16]


def record(env: Any, actions: list[int]) -> list[Any]:
    """Everything there is to see while playing on."""
    seen: list[Any] = []
    for a in actions:
        step = env.step(a)
        seen.append([digest(step.observation), step.reward, step.terminated, step.truncated, step.game_over])
        if step.terminated or step.truncated:
            seen.append(digest(env.reset()))
    seen.append(digest(env.render()))
    return seen


def some_actions(env: Any, count: int, seed: int = 0) -> list[int]:
    return [int(a) for a in np.random.default_rng(seed).integers(env.spec.num_actions, size=count)]


def check_resumes(game: str, steps: int, played: int = 150) -> None:
    options = EnvConfig(max_steps=played + 200)  # so that a truncation comes by too
    env = make_env(game, options, training=True)
    env.reset(seed=1)
    record(env, some_actions(env, played))
    state = env.save()
    assert state is not None
    picture, last = env.render(), env.step(0)
    actions = some_actions(env, steps, seed=2)
    if last.terminated or last.truncated:
        env.reset()
    expected = record(env, actions)

    other = make_env(game, options, training=True)
    for _ in range(2):  # from anew, and over a game that has been going on
        assert np.array_equal(other.restore(state), state["stack"])
        assert np.array_equal(other.render(), picture)
        first = other.step(0)
        assert np.array_equal(first.observation, last.observation)
        assert first[1:] == last[1:]
        if first.terminated or first.truncated:
            other.reset()
        assert record(other, actions) == expected


@pytest.mark.parametrize("game", ["Breakout", "Qbert"])
def test_a_restored_game_goes_on_bit_for_bit(game: str) -> None:
    check_resumes(game, 500)


@pytest.mark.slow
@pytest.mark.parametrize("game", ATARI_100K)
def test_every_restored_game_goes_on_bit_for_bit(game: str) -> None:
    check_resumes(game, 500, played=137)


def test_a_state_saved_right_after_a_reset_goes_on(tmp_path: Path) -> None:
    """Qbert's emulator stops in mid-frame there, if nothing is played before: no FIRE, no no-op."""
    env = Atari("Qbert", EnvConfig(), training=True, noop_max=0)
    env._presses_fire = False
    env.reset(seed=0)
    state = env.save()
    assert state is not None
    actions = some_actions(env, 40)
    expected = record(env, actions)
    other = Atari("Qbert", EnvConfig(), training=True, noop_max=0)
    other._presses_fire = False
    other.reset(seed=5)
    record(other, [1, 2, 3])
    other.restore(state)
    assert record(other, actions) == expected


@pytest.mark.parametrize("ending", ["life", "game"])
def test_a_state_saved_at_the_end_of_an_episode_resets_rightly(ending: str) -> None:
    env = make_env("Breakout", EnvConfig(), training=True)
    env.reset(seed=1)
    while True:
        step = env.step(0)
        if step.terminated:
            if step.game_over == (ending == "game"):
                break
            env.reset()
    state = env.save()
    assert state is not None
    other = make_env("Breakout", EnvConfig(), training=True)
    assert np.array_equal(other.restore(state), step.observation)
    with pytest.raises(RuntimeError, match="reset"):
        other.step(0)
    assert np.array_equal(other.reset(), env.reset())
    actions = some_actions(env, 60)
    assert record(other, actions) == record(env, actions)


CONTINUE = """
import json, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from test_atari_state import record
from twm.config import EnvConfig
from twm.envs import make_env
env = make_env("RoadRunner", EnvConfig(), training=True)
with np.load(sys.argv[2], allow_pickle=False) as state:
    env.restore(dict(state))
print(json.dumps(record(env, json.loads(sys.argv[3]))))
"""


def test_a_new_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    env = make_env("RoadRunner", EnvConfig(), training=True)
    env.reset(seed=1)
    record(env, some_actions(env, 60))
    state = env.save()
    assert state is not None
    np.savez(tmp_path / "state.npz", **state)
    actions = some_actions(env, 500, seed=2)
    expected = record(env, actions)
    command = [sys.executable, "-c", CONTINUE, str(Path(__file__).parent), str(tmp_path / "state.npz")]
    done = subprocess.run([*command, json.dumps(actions)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected


def test_a_state_holds_plain_arrays() -> None:
    env = make_env("Pong", EnvConfig(), training=True)
    with pytest.raises(RuntimeError, match="reset"):
        env.save()
    env.reset(seed=0)
    state = env.save()
    assert state is not None
    assert {array.dtype for array in state.values()} == {np.dtype(np.uint8)}


@pytest.mark.parametrize(
    ("game", "options", "named"),
    [
        ("Breakout", {}, "env = 'Pong'"),
        ("Pong", {"size": 32}, "frame_shape"),
        ("Pong", {"frame_skip": 2}, "frame_skip"),
    ],
)
def test_a_state_of_another_environment_is_refused(game: str, options: dict[str, Any], named: str) -> None:
    env = make_env("Pong", EnvConfig(), training=True)
    env.reset(seed=0)
    state = env.save()
    assert state is not None
    with pytest.raises(ConfigError, match=named):
        make_env(game, replace(EnvConfig(), **options), training=True).restore(state)


def test_games_that_cannot_be_resumed_exactly_say_so() -> None:
    env = make_env("YarsRevenge", EnvConfig(), training=True)
    env.reset(seed=0)
    assert env.save() is None


def test_the_same_seed_is_the_same_game_whatever_came_before() -> None:
    """BeamRider remembers the game before through an ordinary reset (Assault too, seen some 400 steps later)."""
    env, other = (make_env("BeamRider", EnvConfig(), training=True) for _ in range(2))
    actions = some_actions(env, 30)
    env.reset(seed=4)
    env.render()
    first = record(env, actions)
    other.reset(seed=9)
    record(other, some_actions(env, 120, seed=1))
    other.reset(seed=4)
    assert record(other, actions) == first


def test_another_seed_is_another_game() -> None:
    env = make_env("Breakout", EnvConfig(), training=True)
    actions = some_actions(env, 60)
    games = []
    for seed in (1, 2, 3):
        env.reset(seed=seed)
        env.render()
        games.append(record(env, actions))
    assert games[0] != games[1] != games[2] != games[0]
