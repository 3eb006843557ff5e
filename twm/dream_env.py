"""The dream as a Gymnasium environment: any algorithm that learns in an environment can learn in the world model.

Observations are decoded frames in the shape the agent acts on, rewards the predicted ones, and an episode is
terminated when the predicted discount says so. Episodes begin at real moments drawn from the replay of the run, with
the step before as context, as in the dreams that the agent itself learned from, and are truncated at a horizon: a dream
drifts the longer it lasts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from twm.config import ConfigError
from twm.nn import latents
from twm.train.evaluate import load_agent, load_replay, own_random_numbers
from twm.types import FrameArray
from twm.world_model.dynamics import History

Observation = npt.NDArray[Any]


class DreamEnv(gymnasium.Env[Observation, np.int64]):
    """The world model of a run, to be acted in.

    ``reset(options={"index": 7})`` begins at entry 7 of the replay, ``reset(options={"observation": o})`` at a real
    observation, as the beginning of an episode. After ``reset(seed=...)`` the same actions lead to the same dream.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 (Gymnasium's own declaration)

    def __init__(
        self,
        run: Path | str,
        *,
        horizon: int = 50,
        temperature: float = 1.0,
        checkpoint: str = "latest",
        device: str = "auto",
        render_mode: str | None = None,
    ) -> None:
        """``temperature`` 1 draws what happens, 0 takes what is most likely; ``horizon`` is in steps."""
        if horizon < 1:
            raise ConfigError(f"a dream needs a horizon of at least 1 step, got {horizon}")
        agent, _, _ = load_agent(Path(run), which=checkpoint, device=device)
        self.spec_of_world = agent.spec
        self.render_mode = render_mode
        self._world_model, self._device = agent.world_model, agent.device
        self._replay = load_replay(Path(run), agent.spec)
        self._horizon, self._temperature = horizon, temperature
        shape = agent.spec.observation_shape
        self.observation_space = (
            gymnasium.spaces.Box(0, 255, shape, np.uint8)
            if agent.spec.is_image
            else gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        )
        self.action_space = gymnasium.spaces.Discrete(agent.spec.num_actions)
        self._steps = 0
        self._running = False
        self._z: Tensor
        self._r: Tensor
        self._history: History

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        o, a, r = self._start(options or {})
        z = self._world_model.encode(torch.as_tensor(o, device=self._device))
        dynamics = self._world_model.dynamics
        self._history = dynamics.begin(1)
        self._z, self._r = z[-1:], z.new_zeros(1)
        if len(a):
            self._r = dynamics.squash(torch.as_tensor(r, device=self._device))
            self._advance(z[:1], torch.as_tensor(a, device=self._device), z.new_zeros(1))
        self._steps, self._running = 0, True
        return self._decoded(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise gymnasium.error.ResetNeeded("no dream is running: call reset() first, and after each that ended")
        if not self.action_space.contains(action):
            raise ConfigError(f"expected an action from 0 to {self.spec_of_world.num_actions - 1}, got {action}")
        h = self._advance(self._z, torch.tensor([int(action)], device=self._device), self._r)
        with torch.no_grad(), own_random_numbers(int(self.np_random.integers(2**63))):
            prediction = self._world_model.dynamics.predict(h, self._temperature)
        K = self._world_model.config.latent_categories
        self._z, self._r = latents.one_hot(prediction.c, K, self._z.dtype), prediction.r_hat
        self._steps += 1
        terminated = bool(self._world_model.over(prediction.gamma_hat))
        truncated = self._steps >= self._horizon and not terminated
        self._running = not (terminated or truncated)
        return self._decoded(), float(self._r), terminated, truncated, {"gamma": float(prediction.gamma_hat)}

    def render(self) -> npt.NDArray[np.uint8] | None:
        """The newest frame, (height, width, 3)."""
        if self.render_mode != "rgb_array":
            return None
        if not self.spec_of_world.is_image:
            raise ConfigError(f"dreams of {self.spec_of_world.name} are vectors of numbers: there is nothing to show")
        channels = self.spec_of_world.frame_shape[0]
        newest = self._decoded()[-channels:].transpose(1, 2, 0)
        return np.ascontiguousarray(newest.repeat(3 // channels, axis=2))

    def _start(self, options: dict[str, Any]) -> tuple[FrameArray, npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Where a dream begins: observations (k+1, ...), and the k actions and rewards between them; k is 0 or 1."""
        none = np.zeros(0, np.int64), np.zeros(0, np.float32)
        if options.get("observation") is not None:
            o = np.asarray(options["observation"])
            if o.shape != self.observation_space.shape:
                raise ConfigError(f"expected an observation of shape {self.observation_space.shape}, got {o.shape}")
            return o[None], *none
        if self._replay is None or not len(self._replay):
            raise ConfigError('this run has no replay to start from: give reset(options={"observation": o})')
        length = len(self._replay)
        index = int(options.get("index", self.np_random.integers(length)))
        if not 0 <= index < length:
            raise ConfigError(f"the replay holds entries 0 to {length - 1}, but a dream was to start at {index}")
        if self._replay.is_episode_start[index]:
            return self._replay.observations([index]), *none
        step = self._replay.sequences([index], 0)  # entry index - 1 and the observation behind it
        return step.o[0], step.a[0], step.r[0]

    def _advance(self, z: Tensor, a: Tensor, r: Tensor) -> Tensor:
        same_episode = torch.zeros(1, dtype=torch.bool, device=self._device)
        return self._world_model.dynamics.step(self._history, z, a, r, same_episode)

    def _decoded(self) -> Observation:
        return np.asarray(self._world_model.decode(self._z)[0].cpu().numpy())
