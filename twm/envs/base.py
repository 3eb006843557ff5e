"""What every environment offers, and the few tools they share."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt

from twm.config import ConfigError, EnvConfig
from twm.types import EnvSpec, FrameArray, Outcome, Step

EnvState = dict[str, npt.NDArray[Any]]
"""A saved environment: plain arrays only, so that it fits into safetensors."""


class Env(Protocol):
    """A game played one interaction at a time.

    After a step that is ``terminated`` or ``truncated`` comes ``reset()``. If the real game is not over
    (``Step.game_over`` is False: a lost life while training) it goes on from where it is, otherwise a new game begins.
    Either way the stack starts afresh with its first frame repeated, so that no observation mixes two episodes.
    Observations are new arrays at every call; the caller may keep them.
    """

    spec: EnvSpec

    def reset(self, seed: int | None = None) -> FrameArray:
        """Begin an episode. A seed reseeds everything random and starts a new game, whatever the state was."""
        ...

    def step(self, a: int) -> Step:
        """One interaction."""
        ...

    def save(self) -> EnvState | None:
        """The complete state, or None where an exact one cannot be had."""
        ...

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> FrameArray:
        """Go on, bit for bit, from what :meth:`save` gave, perhaps in another process; returns the observation."""
        ...

    def render(self) -> npt.NDArray[np.uint8]:
        """The present picture for people, (height, width, 3) RGB at full resolution."""
        ...

    def close(self) -> None:
        """Free what is not Python's; calling it twice is harmless."""
        ...


class LooksLater(Protocol):
    """An :class:`Env` whose step comes in two halves, so that several can play before the first is looked at."""

    def play(self, a: int) -> Outcome:
        """One interaction."""
        ...

    def observe(self) -> FrameArray:
        """What it led to."""
        ...


def look_later(envs: Sequence[Any]) -> TypeGuard[Sequence[LooksLater]]:
    """Whether they do; a vector of environments is all of one kind."""
    return hasattr(envs[0], "observe")


class FrameStack:
    """The last frames of an episode as one array, newest last; an episode's first frame fills all places."""

    def __init__(self, frame_shape: tuple[int, ...], stack: int) -> None:
        self._channels = frame_shape[0]
        self._shape = (frame_shape[0] * stack, *frame_shape[1:])
        self._repeats = (stack,) + (1,) * (len(frame_shape) - 1)
        self.array: FrameArray = np.zeros(self._shape, np.uint8)

    def restart(self, frame: FrameArray) -> FrameArray:
        self.array = np.tile(frame, self._repeats)
        return self.array

    def push(self, frame: FrameArray) -> FrameArray:
        """A new array each time: observations already given out stay as they were."""
        array = np.empty(self._shape, frame.dtype)
        array[: -self._channels] = self.array[self._channels :]
        array[-self._channels :] = frame
        self.array = array
        return array

    def load(self, array: npt.NDArray[Any]) -> FrameArray:
        if array.shape != self._shape:
            raise ConfigError(f"the saved frame stack has the shape {array.shape}, but {self._shape} was expected")
        self.array = array.copy()
        return self.array


def check_options(options: EnvConfig, noop_max: int) -> None:
    """Refuse options no environment can work with, for callers that did not validate a whole configuration."""
    for name, least in (("size", 8), ("stack", 1), ("frame_skip", 1), ("max_steps", 1)):
        if getattr(options, name) < least:
            raise ConfigError(f"env_options.{name} must be at least {least}, but is {getattr(options, name)}")
    if noop_max < 0:
        raise ConfigError(f"noop_max must not be negative, but is {noop_max}: give 0 for no no-ops")


def check_action(a: Any, spec: EnvSpec) -> int:
    """``a`` as an index into the actions: never clipped, never wrapped around."""
    try:
        index = operator.index(a)
    except TypeError:
        index = -1
    if not 0 <= index < spec.num_actions:
        raise ConfigError(
            f"{spec.name} takes a whole number from 0 to {spec.num_actions - 1} ({', '.join(spec.actions)}) "
            f"as its action, but got {a!r}"
        )
    return index


def check_seed(seed: int) -> int:
    """Seeds are whole and not negative, as numpy wants them."""
    if operator.index(seed) < 0:
        raise ConfigError(f"a seed must be a whole number from 0 up, but is {seed}")
    return operator.index(seed)


def must_reset(name: str) -> RuntimeError:
    """The error for a step taken where there is no episode."""
    return RuntimeError(f"{name}: no episode is running; call reset() first, and after each step that ends one")


def pack_json(value: Any) -> npt.NDArray[np.uint8]:
    """Counters and random states as bytes of JSON: they hold integers of 128 bits, which no array type does."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8).copy()


def unpack_json(array: npt.NDArray[Any]) -> Any:
    return json.loads(np.asarray(array, np.uint8).tobytes())


def check_same(saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Refuse a state that another environment, or the same one with other options, has saved."""
    for key, value in present.items():
        if saved.get(key) != value:
            raise ConfigError(
                f"cannot restore: the state was saved with {key} = {saved.get(key)!r}, but here {key} is {value!r}; "
                "make the environment as it was made then"
            )
