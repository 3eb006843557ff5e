"""The real environment beside the dream: the same actions, and where the dream departs.

A replay holds pictures, not the emulator's state, so a comparison begins with a fresh episode: the real environment
is played for some steps, then both go on from there, the dream with what it knows and the environment with what is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twm.agent import Agent
from twm.envs import make_env
from twm.studio.dream import Model, Start
from twm.studio.inside import numbers
from twm.studio.randomness import repeatable
from twm.studio.starts import context
from twm.types import FrameArray

BLOCK = 4
"""Pixels along the side of the patches in which pictures are compared: as large as a ball."""
MARGIN = 0.1
"""Of full brightness, over a patch: what counts as a difference."""
PATIENCE = 3
"""Steps in a row that must differ: a flicker is no departure."""


class Reality:
    """One real episode. ``start`` is where the dream begins, ``frames`` what was really there from then on."""

    def __init__(self, model: Model, origin: dict[str, Any]) -> None:
        self.model, self.origin = model, origin
        # The world the model has learned: there a lost life ends the episode.
        self._env = make_env(model.config.env, model.config.env_options, training=True)
        self._newest = self._env.spec.frame_shape[0]
        self.start, observation = self._play_up_to_start()
        self._saved = self._env.save()
        self.apart: list[tuple[float, float]] = []  # of each step: difference of the dream, and of the reconstruction
        self.ended_at: int | None = None
        self._begin(observation)

    def step(self, a: int) -> None:
        """The same action in the real environment; after its end the last picture stays."""
        if self.ended_at is None:
            step = self._env.step(a)
            self._see(step.observation, step.reward)
            if step.terminated or step.truncated:
                self.ended_at = len(self.frames) - 1
        else:
            for kept in (self.frames, self.reconstructions):
                kept.append(kept[-1])
            self.rewards.append(0.0)

    def go_back(self, actions: Sequence[int]) -> None:
        """To the step after ``actions`` from the start: by playing them again."""
        if len(actions) == len(self.frames) - 1:
            return
        observation = self._play_up_to_start()[1] if self._saved is None else self._env.restore(self._saved)
        self._begin(observation)
        for a in actions:
            self.step(a)

    def compare(self, t: int, dreamt: npt.NDArray[Any]) -> None:
        """Note how far the dream's picture at step ``t`` is from the real one; later notes are forgotten."""
        del self.apart[t:]
        self.apart.append((difference(dreamt, self.frames[t]), difference(self.reconstructions[t], self.frames[t])))

    def cut(self, t: int) -> None:
        """Forget the comparisons after step ``t``: the dream goes on from there."""
        del self.apart[t + 1 :]

    def facts(self, first: int, t: int) -> dict[str, Any]:
        """For the page: comparisons from step ``first`` on, and what can be said at step ``t``."""
        dream, floor = zip(*self.apart)
        known = len(dream) if self.ended_at is None else self.ended_at + 1  # behind its end there is no reality
        return {
            "first": first,
            "difference": numbers(dream[first:]),
            "floor": numbers(floor[first:]),
            "r": numbers(self.rewards[first : len(self.apart)]),
            "left": departure(dream[:known], floor[:known]),
            "ended": self.ended_at if self.ended_at is not None and self.ended_at <= t else None,
        }

    def close(self) -> None:
        self._env.close()

    def _begin(self, observation: FrameArray) -> None:
        self.frames: list[FrameArray] = []
        self.reconstructions: list[FrameArray] = []  # the best the decoder could show
        self.rewards: list[float] = []
        self.ended_at = None
        self._see(observation, 0.0)

    def _see(self, observation: FrameArray, reward: float) -> None:
        world_model = self.model.agent.world_model
        o = torch.as_tensor(observation[None], device=self.model.agent.device)
        seen = world_model.decode(world_model.encode(o))[0].cpu().numpy()
        self.frames.append(observation[-self._newest :].copy())
        self.reconstructions.append(seen[-self._newest :].copy())
        # As the model sees rewards, so that they can be compared with what it predicts.
        self.rewards.append(float(world_model.dynamics.squash(torch.tensor(reward, dtype=torch.float32))))

    def _play_up_to_start(self) -> tuple[Start, FrameArray]:
        """Reset and play; what the last steps of the running episode were becomes the dream's context."""
        origin, model, env = self.origin, self.model, self._env
        agent = Agent(model.agent.world_model, model.agent.policy, model.agent.spec)  # with a memory of its own
        rng = np.random.default_rng(origin["seed"])
        observation, reward, restart = env.reset(seed=origin["seed"]), 0.0, True
        seen: list[FrameArray] = [observation]
        taken: list[tuple[int, float]] = []
        with repeatable(origin["seed"]):
            for _ in range(origin["steps"]):
                a = int(rng.integers(env.spec.num_actions))
                if origin["by"] == "policy":
                    a = agent.act(observation, reward=reward, restart=restart)
                step = env.step(a)
                if step.terminated or step.truncated:
                    observation, reward, restart, seen, taken = env.reset(), 0.0, True, [], []
                else:
                    observation, reward, restart = step.observation, step.reward, False
                    taken.append((a, step.reward))
                seen.append(observation)
                k = model.config.world_model.sequence_length
                seen, taken = seen[-k - 1 :], taken[-k:]
        start = context(model, np.stack(seen), [a for a, _ in taken], [r for _, r in taken], origin)
        return start, observation


def difference(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> float:
    """How different two frames are where they differ most: the mean absolute difference, from 0 to 1, of the worst
    patch of 4 x 4 pixels. A mean over the whole picture would not notice a missing ball. Vectors: the largest
    difference of a number, on a logarithmic scale."""
    if x.ndim != 3:
        logs = [np.sign(v) * np.log1p(np.abs(v)) for v in (x.astype(np.float64), y.astype(np.float64))]
        return float(np.abs(logs[0] - logs[1]).max())
    gap = np.abs(x.astype(np.float32) - y.astype(np.float32)).mean(0) / 255  # (height, width)
    height, width = (size - size % BLOCK for size in gap.shape)
    patches = gap[:height, :width].reshape(height // BLOCK, BLOCK, width // BLOCK, BLOCK)
    return float(patches.mean((1, 3)).max())


def departure(dream: Sequence[float], floor: Sequence[float]) -> int | None:
    """The step at which the dream leaves reality: the first of three in a row where its difference exceeds that of
    the decoder's own picture of reality (``floor``) by a tenth of full brightness. None while it stays."""
    apart = 0
    for t, (distance, least) in enumerate(zip(dream, floor)):
        apart = apart + 1 if distance > least + MARGIN else 0
        if apart == PATIENCE:
            return t - PATIENCE + 1
    return None
