"""Any Gymnasium environment with discrete actions.

Pictures are grayed, resized and stacked as the options say; vectors of numbers are stacked as they are. What does
not fit is refused with what to do instead.

An environment that can be resumed exactly offers two methods of its own (on the unwrapped environment):

    save_state() -> dict[str, np.ndarray]     everything, random state included
    restore_state(state) -> None              the reverse, called after a reset

Time limits of registered environments are counted here and not by Gymnasium's wrapper, so that they are saved too.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from twm.config import ConfigError, EnvConfig
from twm.envs.base import (
    EnvState,
    FrameStack,
    check_action,
    check_same,
    check_seed,
    must_reset,
    pack_json,
    unpack_json,
)
from twm.types import EnvSpec, FrameArray, Step

ToFrame = Callable[[Any], FrameArray]

SMALLEST_DICT_IMAGE = 16
"""Pixels along a side; an "image" below that is a grid of symbols, as MiniGrid's 7 x 7 is."""


def registered() -> Collection[str]:
    """The ids Gymnasium knows."""
    import gymnasium

    return gymnasium.registry.keys()


class GymEnv:
    """One environment, by registered id or as ``module:EnvClass`` (or any callable that makes one)."""

    def __init__(self, name: str, options: EnvConfig) -> None:
        self._env, limit = _make(name)
        shape, self._to_frame = frame_reader(name, self._env.observation_space, options)
        actions = _action_names(name, self._env)
        self._first_action = int(getattr(self._env.action_space, "start", 0))
        self.spec = EnvSpec(name, shape, options.stack, actions)
        self._max_steps = options.max_steps if limit is None else min(limit, options.max_steps)
        self._stack = FrameStack(shape, options.stack)
        self._running, self._steps = False, 0

    def reset(self, seed: int | None = None) -> FrameArray:
        observation, _ = self._env.reset(seed=None if seed is None else check_seed(seed))
        self._running, self._steps = True, 0
        return self._stack.restart(self._to_frame(observation))

    def step(self, a: int) -> Step:
        index = check_action(a, self.spec)
        if not self._running:
            raise must_reset(self.spec.name)
        observation, reward, terminated, truncated, _ = self._env.step(index + self._first_action)
        self._steps += 1
        terminated = bool(terminated)
        truncated = (bool(truncated) or self._steps >= self._max_steps) and not terminated
        self._running = not (terminated or truncated)
        o = self._stack.push(self._to_frame(observation))
        return Step(o, float(reward), terminated, truncated, terminated or truncated)

    def save(self) -> EnvState | None:
        hook = getattr(self._env.unwrapped, "save_state", None)
        if hook is None or not hasattr(self._env.unwrapped, "restore_state"):
            return None
        meta = {**self._identity(), "steps": self._steps, "running": self._running}
        inner = {f"env.{key}": np.array(value) for key, value in hook().items()}
        return {**inner, "meta": pack_json(meta), "stack": self._stack.array.copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> FrameArray:
        hook = getattr(self._env.unwrapped, "restore_state", None)
        if hook is None:
            raise ConfigError(f"{self.spec.name} has no restore_state(state), so no saved state can be restored")
        meta = unpack_json(state["meta"])
        check_same(meta, self._identity())
        self._env.reset()
        hook({key.removeprefix("env."): np.array(value) for key, value in state.items() if key.startswith("env.")})
        self._steps, self._running = meta["steps"], meta["running"]
        return self._stack.load(state["stack"])

    def render(self) -> npt.NDArray[np.uint8]:
        picture = self._env.render() if getattr(self._env, "render_mode", None) == "rgb_array" else None
        if picture is not None:
            return np.asarray(picture, np.uint8)
        if not self.spec.is_image:
            raise ConfigError(f"{self.spec.name} cannot be shown: it has no render mode rgb_array")
        newest = self._stack.array[-self.spec.frame_shape[0] :].transpose(1, 2, 0).astype(np.uint8)
        return newest.repeat(3 // newest.shape[2], axis=2)

    def close(self) -> None:
        self._env.close()

    def _identity(self) -> dict[str, Any]:
        return {"env": self.spec.name, "frame_shape": list(self.spec.frame_shape), "stack": self.spec.stack}


# --------------------------------------------------------------------------------------------------
# Making


def _make(name: str) -> tuple[Any, int | None]:
    """The environment, able to render where it offers it, and its own time limit."""
    import gymnasium

    module_name, _, attribute = name.rpartition(":")
    maker = getattr(_import(name, module_name), attribute, None) if module_name else None
    try:
        if maker is not None:
            env = maker(render_mode="rgb_array") if _can_render(maker) else maker()
            limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
        elif attribute in gymnasium.registry:  # registered, perhaps by the import of its module
            limit = gymnasium.spec(attribute).max_episode_steps
            env = _make_registered(attribute)
        else:
            raise ConfigError(f"environment {name!r}: {module_name} has no {attribute}, and registers no such id")
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"environment {name!r} cannot be made: {error}") from error
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"{name} must make a gymnasium.Env, but made a {type(env).__name__}")
    return env, limit


def _make_registered(name: str) -> Any:
    """Without Gymnasium's time limit, which would not be saved, and checker, which costs time at each step."""
    import gymnasium

    arguments: dict[str, Any] = {"max_episode_steps": -1, "disable_env_checker": True}
    entry = gymnasium.spec(name).entry_point
    creator = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    if "rgb_array" in getattr(creator, "metadata", {}).get("render_modes", []):
        arguments["render_mode"] = "rgb_array"
    return gymnasium.make(name, **arguments)


def _can_render(maker: Any) -> bool:
    modes = getattr(maker, "metadata", {}).get("render_modes", ["rgb_array"])  # functions do not say
    try:
        return "rgb_array" in modes and "render_mode" in inspect.signature(maker).parameters
    except (TypeError, ValueError):  # not everything that can be called tells its parameters
        return False


def _import(name: str, module: str) -> Any:
    """Also finds modules beside the caller, as a script there would."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"environment {name!r}: cannot import {module}: {error}") from error


def _action_names(name: str, env: Any) -> tuple[str, ...]:
    from gymnasium.spaces import Discrete

    if not isinstance(env.action_space, Discrete):
        raise ConfigError(
            f"{name} has the actions {env.action_space}, but only Discrete ones are supported: "
            "wrap it so that each action is one number (e.g. bins of a continuous action, all combinations of several)"
        )
    count = int(env.action_space.n)
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    names = tuple(map(str, meanings())) if meanings is not None else ()
    return names if len(names) == count else tuple(map(str, range(count)))


# --------------------------------------------------------------------------------------------------
# Observations


def frame_reader(name: str, space: Any, options: EnvConfig) -> tuple[tuple[int, ...], ToFrame]:
    """The shape of a frame, and what makes one of an observation."""
    from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

    if isinstance(space, Dict) and isinstance(space.get("image"), Box):
        image: Any = space["image"]
        if min(image.shape[:2]) < SMALLEST_DICT_IMAGE:
            raise ConfigError(
                f"{name}: its image of the shape {image.shape} is a grid of symbols, not of pixels; give "
                "module:function for a function that wraps it (MiniGrid: in minigrid.wrappers.RGBImgPartialObsWrapper)"
            )
        shape, to_frame = frame_reader(name, image, options)
        return shape, lambda observation: to_frame(observation["image"])
    if isinstance(space, Discrete):
        return (int(space.n),), _one_hot(int(space.n), int(space.start))
    if isinstance(space, (Box, MultiBinary)) and len(space.shape) == 1:
        return (int(space.shape[0]),), lambda observation: np.asarray(observation, np.float32)
    if isinstance(space, Box) and len(space.shape) in (2, 3):
        return _image_reader(name, space, options)
    raise ConfigError(
        f"{name} has the observations {space}, but only pictures (height, width[, 1 or 3]), vectors, Discrete, and "
        "a Dict with an image are supported: wrap it, e.g. in gymnasium.wrappers.FlattenObservation"
    )


def _one_hot(count: int, start: int) -> ToFrame:
    rows = np.eye(count, dtype=np.float32)
    return lambda observation: rows[int(observation) - start]


def _image_reader(name: str, space: Any, options: EnvConfig) -> tuple[tuple[int, ...], ToFrame]:
    """Pictures of bytes, or of numbers in [0, 1] or [0, 255], with the channels last or first."""
    import cv2

    shape = space.shape if len(space.shape) == 3 else (*space.shape, 1)
    channels_first = shape[2] not in (1, 3) and shape[0] in (1, 3)
    height, width, channels = (*shape[1:], shape[0]) if channels_first else shape
    low, high = float(np.min(space.low)), float(np.max(space.high))
    if channels not in (1, 3) or low < 0 or high > 255:
        raise ConfigError(
            f"{name} has the observations {space}: a picture must have 1 or 3 channels and values in [0, 1] or "
            "[0, 255]; wrap it, e.g. in gymnasium.wrappers.FlattenObservation to make it a vector"
        )
    scale = 255.0 if high <= 1 else 1.0
    to_gray = options.gray and channels == 3
    kept = 1 if to_gray else channels
    # Means of areas lose nothing small when shrinking; nothing is to be blurred when enlarging.
    method = cv2.INTER_AREA if min(height, width) > options.size else cv2.INTER_NEAREST
    size = (options.size, options.size)

    def to_frame(observation: Any) -> FrameArray:
        picture = np.asarray(observation).reshape(shape)
        if channels_first:
            picture = picture.transpose(1, 2, 0)
        if picture.dtype != np.uint8 or scale != 1:
            picture = np.rint(picture * scale).astype(np.uint8)
        if to_gray:
            picture = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        if picture.shape[:2] != size:
            picture = cv2.resize(picture, size, interpolation=method)
        return np.asarray(picture.reshape(*size, kept).transpose(2, 0, 1))

    return (kept, *size), to_frame
