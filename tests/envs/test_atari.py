"""Atari beside Gymnasium: the same pixels, rewards and ends; and what is refused."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from twm.config import ConfigError, EnvConfig
from twm.envs import make_env
from twm.envs.atari import ATARI_100K, CANNOT_SAVE, Atari, games

ale_py = pytest.importorskip("ale_py")
gymnasium = pytest.importorskip("gymnasium")

# The minimal action counts of the benchmark's games.
ACTIONS = {
    "Alien": 18, "Amidar": 10, "Assault": 7, "Asterix": 9, "BankHeist": 18, "BattleZone": 18, "Boxing": 18,
    "Breakout": 4, "ChopperCommand": 18, "CrazyClimber": 9, "DemonAttack": 6, "Freeway": 3, "Frostbite": 18,
    "Gopher": 8, "Hero": 18, "Jamesbond": 18, "Kangaroo": 18, "Krull": 18, "KungFuMaster": 14, "MsPacman": 9,
    "Pong": 6, "PrivateEye": 18, "Qbert": 6, "RoadRunner": 18, "Seaquest": 18, "UpNDown": 6,
}  # fmt: skip


class Reference:
    """ale-py's environment in Gymnasium's wrappers, with FIRE pressed by hand where the facts ask for it."""

    def __init__(self, game: str, *, gray: bool, noop_max: int) -> None:
        from gymnasium.wrappers import AtariPreprocessing

        gymnasium.register_envs(ale_py)
        env = gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
        self.env = AtariPreprocessing(env, noop_max=noop_max, screen_size=64, grayscale_obs=gray)
        self.fires = env.unwrapped.get_action_meanings()[1] == "FIRE"

    def reset(self, seed: int | None = None) -> Any:
        picture, _ = self.env.reset(seed=seed)
        if self.fires:
            picture, _, _, _, _ = self.env.step(1)
        self.lives = self.env.ale.lives()
        return picture

    def step(self, a: int) -> tuple[list[Any], float, bool]:
        picture, reward, over, _, info = self.env.step(a)
        pictures = [picture]
        if info["lives"] < self.lives and self.fires and not over:
            picture, more, over, _, info = self.env.step(1)
            pictures, reward = [*pictures, picture], reward + more
        self.lives = info["lives"]
        return pictures, float(reward), over


@pytest.mark.parametrize(
    ("game", "gray", "noop_max", "least_ends"),
    [
        ("Breakout", True, 0, 1),
        ("Asterix", False, 30, 1),  # without FIRE even the random starts agree
        pytest.param("Qbert", False, 0, 0, marks=pytest.mark.slow),
        pytest.param("RoadRunner", True, 0, 0, marks=pytest.mark.slow),
        pytest.param("Freeway", True, 30, 0, marks=pytest.mark.slow),
    ],
)
def test_pixels_are_those_of_gymnasium(game: str, gray: bool, noop_max: int, least_ends: int) -> None:
    """Same seed, same actions, over the ends of games."""
    env = make_env(game, EnvConfig(gray=gray, noop_max=noop_max), training=False)
    reference = Reference(game, gray=gray, noop_max=noop_max)
    channels = env.spec.frame_shape[0]

    def same(observation: Any, picture: Any, back: int = 0) -> bool:
        frame = observation[(3 - back) * channels : (4 - back) * channels]
        return np.array_equal(frame, picture[None] if gray else picture.transpose(2, 0, 1))

    rng = np.random.default_rng(0)
    assert same(env.reset(seed=7), reference.reset(seed=7))
    overs = 0
    for _ in range(320):
        a = int(rng.integers(env.spec.num_actions))
        step, (pictures, reward, over) = env.step(a), reference.step(a)
        assert (step.reward, step.terminated, step.game_over) == (reward, over, over)
        assert same(step.observation, pictures[-1])
        assert len(pictures) == 1 or same(step.observation, pictures[0], back=1)
        if over:
            overs += 1
            assert same(env.reset(), reference.reset())
    assert overs >= least_ends


def test_every_game_of_the_benchmark_is_there() -> None:
    assert set(ATARI_100K) == set(ACTIONS)
    assert set(ATARI_100K) < set(games())
    assert set(games()) > CANNOT_SAVE
    assert not CANNOT_SAVE & set(ATARI_100K)
    assert games()["UpNDown"] == "up_n_down"
    assert "Combat" not in games()  # for two players: ale-py would end the process


@pytest.mark.slow
def test_action_counts() -> None:
    assert {game: Atari(game, EnvConfig(), training=True, noop_max=0).spec.num_actions for game in ACTIONS} == ACTIONS


@pytest.mark.parametrize("a", [-1, 4, 1.0, "FIRE", None])
def test_actions_out_of_range_are_refused(a: Any) -> None:
    env = make_env("Breakout", EnvConfig(), training=True)
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"0 to 3 \(NOOP, FIRE, RIGHT, LEFT\)"):
        env.step(a)


def test_a_missing_emulator_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    games.cache_clear()
    with pytest.raises(ConfigError, match=r'pip install "twm\[atari\]"'):
        make_env("Pong", EnvConfig(), training=True)


def test_observations_once_given_stay_as_they_were() -> None:
    env = make_env("Pong", EnvConfig(), training=True)
    kept = [env.reset(seed=0)]
    before = kept[0].copy()
    kept.extend(env.step(0).observation for _ in range(6))
    assert np.array_equal(kept[0], before)
    assert np.array_equal(kept[5][1:], kept[6][:-1])


def test_rendering_is_full_size_and_changes_nothing() -> None:
    env, other, colored = (make_env("MsPacman", EnvConfig(gray=gray), training=False) for gray in (True, True, False))
    for each in (env, other, colored):
        each.reset(seed=0)
    assert env.render().shape == (210, 160, 3)
    for a in np.random.default_rng(0).integers(9, size=20):
        assert np.array_equal(env.step(a).observation, other.step(a).observation)
        colored.step(a)
    assert isinstance(colored, Atari)
    assert np.array_equal(env.render(), colored._screen.merged)  # the flickering ghosts are there: two frames merged


def test_bad_options_are_refused() -> None:
    for options, named in [({"stack": 0}, "stack"), ({"frame_skip": 0}, "frame_skip"), ({"size": 4}, "size")]:
        with pytest.raises(ConfigError, match=f"env_options.{named} must be at least"):
            make_env("Pong", EnvConfig(**options), training=True)
    with pytest.raises(ConfigError, match="noop_max"):
        make_env("Pong", EnvConfig(), training=True, noop_max=-1)
    with pytest.raises(ConfigError, match="seed"):
        make_env("Pong", EnvConfig(), training=True).reset(seed=-1)


def test_noop_max_can_be_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr("twm.envs.atari.Atari", lambda *_, **options: made.append(options) or SimpleNamespace())
    make_env("Pong", EnvConfig(noop_max=7), training=True)
    make_env("Pong", EnvConfig(noop_max=7), training=False, noop_max=0)
    assert [options["noop_max"] for options in made] == [7, 0]
