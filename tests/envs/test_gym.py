"""Any Gymnasium environment: what is read, what is refused, and exact resumption where it is offered."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from twm.config import ConfigError, EnvConfig
from twm.envs import Env, make_env

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces


class Toy(gymnasium.Env):  # type: ignore[misc]
    """Gives observations of any space from a function of the step's number; ends at step 5."""

    def __init__(self, space: Any, observe: Any, actions: Any = None) -> None:
        self.observation_space, self.observe = space, observe
        self.action_space = spaces.Discrete(2) if actions is None else actions
        self.taken: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(0), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.taken.append(action)
        return self.observe(self.t), 0.5, self.t == 5, False, {}


class Walk(gymnasium.Env):  # type: ignore[misc]
    """A random walk that can be saved."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = np.zeros(2)
        return self.x, {}

    def step(self, action: int) -> Any:
        self.x = self.x + self.np_random.normal(size=2) + action
        return self.x, float(self.x[0]), False, False, {}

    def save_state(self) -> dict[str, np.ndarray]:
        state = self.np_random.bit_generator.state["state"]
        words = [state[key] >> shift & (2**64 - 1) for key in ("state", "inc") for shift in (64, 0)]
        return {"x": self.x, "rng": np.array(words, np.uint64)}

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        words = [int(word) for word in state["rng"]]
        numbers = {"state": words[0] << 64 | words[1], "inc": words[2] << 64 | words[3]}
        self.np_random.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": numbers,
            "has_uint32": 0,
            "uinteger": 0,
        }
        self.x = state["x"]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An importable module to put environments into."""
    module = ModuleType("toys")
    monkeypatch.setitem(sys.modules, "toys", module)
    return module


def made(toys: ModuleType, space: Any, observe: Any, *, actions: Any = None, **options: Any) -> Env:
    toys.make = lambda: Toy(space, observe, actions)  # type: ignore[attr-defined]
    return make_env("toys:make", EnvConfig(**{"size": 8, "stack": 2, **options}), training=True)


def byte_box(*shape: int) -> Any:
    return spaces.Box(0, 255, shape, np.uint8)


def test_vectors_are_stacked_as_they_are(toys: ModuleType) -> None:
    env = made(toys, spaces.Box(-9, 9, (3,)), lambda t: np.array([t, -t, 0.5]))
    assert (env.spec.frame_shape, env.spec.observation_shape, env.spec.is_image) == ((3,), (6,), False)
    first = env.reset(seed=0)
    assert first.dtype == np.float32
    assert first.tolist() == [0, 0, 0.5, 0, 0, 0.5]
    step = env.step(1)
    assert step.observation.tolist() == [0, 0, 0.5, 1, -1, 0.5]
    assert step[1:] == (0.5, False, False, False)
    for _ in range(4):
        step = env.step(0)
    assert step[1:] == (0.5, True, False, True)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)
    assert env.reset().tolist() == first.tolist()


def test_discrete_observations_become_one_hot(toys: ModuleType) -> None:
    env = made(toys, spaces.Discrete(4, start=1), lambda t: t + 1, stack=1)
    assert env.reset(seed=0).tolist() == [1, 0, 0, 0]
    assert env.step(0).observation.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("space", "picture", "frame"),
    [
        (byte_box(16, 32, 3), np.full((16, 32, 3), 100, np.uint8), np.full((1, 8, 8), 100)),
        (byte_box(8, 8), np.full((8, 8), 7, np.uint8), np.full((1, 8, 8), 7)),
        (byte_box(8, 8, 1), np.full((8, 8, 1), 7, np.uint8), np.full((1, 8, 8), 7)),
        (byte_box(3, 16, 16), np.full((3, 16, 16), 100, np.uint8), np.full((1, 8, 8), 100)),
        (spaces.Box(0, 1, (8, 8, 1)), np.full((8, 8, 1), 0.5, np.float32), np.full((1, 8, 8), 128)),  # 127.5, to even
        (spaces.Box(0, 255, (8, 8)), np.full((8, 8), 99.6, np.float32), np.full((1, 8, 8), 100)),
        (
            spaces.Dict({"image": byte_box(16, 16, 3), "direction": spaces.Discrete(4)}),
            {"image": np.full((16, 16, 3), 100, np.uint8), "direction": 0},
            np.full((1, 8, 8), 100),
        ),
    ],
)
def test_pictures_of_many_kinds(toys: ModuleType, space: Any, picture: Any, frame: Any) -> None:
    env = made(toys, space, lambda t: picture, stack=1)
    o = env.reset(seed=0)
    assert o.dtype == np.uint8
    assert np.array_equal(o, frame)


def test_colors_stay_if_wanted_and_shrinking_takes_the_mean(toys: ModuleType) -> None:
    """Two rows of 0 and 200 make one of 100; the channels come first, each with its own value."""
    picture = np.zeros((16, 16, 3), np.uint8)
    picture[1::2] = (200, 100, 50)
    env = made(toys, byte_box(16, 16, 3), lambda t: picture, gray=False, stack=2)
    o = env.reset(seed=0)
    assert o.shape == (6, 8, 8)
    assert np.array_equal(o, np.tile(np.array([100, 50, 25])[:, None, None], (2, 8, 8)))


def test_enlarging_blurs_nothing(toys: ModuleType) -> None:
    picture = np.array([[0, 255], [255, 0]], np.uint8)
    env = made(toys, byte_box(2, 2), lambda t: picture, stack=1)
    assert np.array_equal(env.reset(seed=0)[0], picture.repeat(4, axis=0).repeat(4, axis=1))
    assert np.array_equal(env.render()[..., 1], picture.repeat(4, axis=0).repeat(4, axis=1))


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (spaces.Dict({"image": byte_box(7, 7, 3)}), "grid of symbols.*RGBImgPartialObsWrapper"),
        (spaces.Dict({"a": spaces.Discrete(2)}), "Dict with an image are supported: wrap it"),
        (spaces.Tuple([spaces.Discrete(2)]), "only pictures.*are supported"),
        (byte_box(10, 10, 4), "must have 1 or 3 channels"),
        (spaces.Box(-1, 1, (8, 8, 3)), r"values in \[0, 1\] or \[0, 255\]"),
        (byte_box(2, 2, 2, 2), "only pictures"),
    ],
)
def test_other_observations_are_refused(toys: ModuleType, space: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        made(toys, space, lambda t: None)


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)])
def test_other_actions_are_refused(toys: ModuleType, space: Any) -> None:
    with pytest.raises(ConfigError, match="only Discrete ones are supported: wrap it"):
        made(toys, byte_box(8, 8), lambda t: np.zeros((8, 8), np.uint8), actions=space)


def test_actions_may_begin_elsewhere_and_have_names(toys: ModuleType) -> None:
    toy = Toy(spaces.Box(0, 1, (1,)), lambda t: np.zeros(1), spaces.Discrete(2, start=3))
    toy.get_action_meanings = lambda: ["WAIT", "GO"]  # type: ignore[attr-defined]
    toys.make = lambda: toy  # type: ignore[attr-defined]
    env = make_env("toys:make", EnvConfig(), training=True)
    assert env.spec.actions == ("WAIT", "GO")
    env.reset(seed=0)
    env.step(1)
    assert toy.taken == [4]
    with pytest.raises(ConfigError, match=r"0 to 1 \(WAIT, GO\)"):
        env.step(3)


def test_the_shorter_time_limit_counts() -> None:
    """CartPole-v1 is registered with a limit of 500 steps."""
    env = make_env("CartPole-v1", EnvConfig(max_steps=4, stack=1), training=True)
    assert env.spec.actions == ("0", "1")
    env.reset(seed=0)
    steps = [env.step(t % 2) for t in range(4)]
    assert [s.truncated for s in steps] == [False, False, False, True]
    assert steps[-1].game_over
    assert not steps[-1].terminated
    # Pendulum-like environments without an end of their own still stop at the registered limit.
    taxi = make_env("FrozenLake-v1", EnvConfig(stack=1), training=True)
    assert taxi._max_steps == 100  # type: ignore[attr-defined]


def test_by_class_and_by_id_it_is_the_same_game() -> None:
    by_id = make_env("CartPole-v1", EnvConfig(), training=True)
    by_class = make_env("gymnasium.envs.classic_control.cartpole:CartPoleEnv", EnvConfig(), training=True)
    assert np.array_equal(by_id.reset(seed=5), by_class.reset(seed=5))
    for a in (0, 1, 1, 0):
        assert np.array_equal(by_id.step(a).observation, by_class.step(a).observation)
    assert by_id.save() is None


def test_an_id_may_be_registered_by_its_module(toys: ModuleType) -> None:
    gymnasium.register("Walk-v0", entry_point=Walk, max_episode_steps=7)
    try:
        env = make_env("toys:Walk-v0", EnvConfig(), training=True)
        env.reset(seed=0)
        assert [env.step(0).truncated for _ in range(7)] == [False] * 6 + [True]
    finally:
        del gymnasium.registry["Walk-v0"]


def test_saved_by_its_own_hooks_it_goes_on_bit_for_bit(toys: ModuleType) -> None:
    toys.Walk = Walk  # type: ignore[attr-defined]
    env, other = (make_env("toys:Walk", EnvConfig(max_steps=20), training=True) for _ in range(2))
    env.reset(seed=0)
    for _ in range(9):
        env.step(1)
    state = env.save()
    assert state is not None
    expected = [env.step(t % 2) for t in range(11)]
    assert np.array_equal(other.restore(state), state["stack"])
    for t, step in enumerate(expected):
        again = other.step(t % 2)
        assert np.array_equal(again.observation, step.observation)
        assert again[1:] == step[1:]
    assert expected[-1].truncated  # the steps before the save count too
    assert not np.array_equal(other.reset(), state["stack"])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no_such_module:Env", "cannot import no_such_module"),
        ("math:Env", "math has no Env, and registers no such id"),
        ("collections:OrderedDict", "must make a gymnasium.Env, but made a OrderedDict"),
    ],
)
def test_what_cannot_be_made_is_refused(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_env(name, EnvConfig(), training=True)


def test_an_environment_that_offers_no_pictures_is_not_asked_for_them(toys: ModuleType) -> None:
    """Gymnasium's own template asserts that the render mode is one that it offers."""

    class Human(Walk):
        metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human"]}

        def __init__(self, render_mode: str | None = None) -> None:
            assert render_mode is None or render_mode in self.metadata["render_modes"]

    toys.Human = Human  # type: ignore[attr-defined]
    env = make_env("toys:Human", EnvConfig(stack=1), training=True)
    assert env.reset(seed=0).shape == (2,)
    env.close()


def test_what_cannot_be_restored_or_shown_is_refused(toys: ModuleType) -> None:
    env = made(toys, spaces.Box(0, 1, (1,)), lambda t: np.zeros(1))
    with pytest.raises(ConfigError, match="no restore_state"):
        env.restore({})
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="no render mode rgb_array"):
        env.render()
    env.close()
