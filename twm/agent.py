"""What a user loads: it acts on observations. Only encoder and actor run, unless the policy looks at h too."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from twm.config import Config
from twm.policy.actor_critic import ActorCritic, sample_action
from twm.types import EnvSpec
from twm.world_model.dynamics import History
from twm.world_model.world_model import WorldModel


class Agent:
    """A policy in the world. For a policy on [z, h] it also remembers what happened, row by row."""

    def __init__(self, world_model: WorldModel, policy: ActorCritic, spec: EnvSpec) -> None:
        self.world_model = world_model
        self.policy = policy
        self.spec = spec
        self._history: History | None = None
        self._h: Tensor | None = None

    @property
    def device(self) -> torch.device:
        return self.policy.actor.output.weight.device

    @torch.no_grad()
    def act(
        self,
        observation: npt.NDArray[Any],
        *,
        temperature: float = 1.0,
        reward: float | npt.NDArray[Any] = 0.0,
        restart: bool | npt.NDArray[Any] = False,
    ) -> Any:
        """The action for one observation, or an array of actions for a batch of them.

        ``temperature`` 1 samples the policy, 0 takes its most likely action. ``reward`` is that of the step
        before and ``restart`` says that an episode begins; only a policy on [z, h] needs these two.
        """
        single = observation.ndim == len(self.spec.observation_shape)
        shape = observation.shape if single else observation.shape[1:]
        if tuple(shape) != self.spec.observation_shape:
            raise ValueError(
                f"an observation of {self.spec.name} has shape {self.spec.observation_shape} (a batch one more axis in "
                f"front), but this has {observation.shape}"
            )
        o = torch.as_tensor(observation, device=self.device)
        a = self._act(o[None] if single else o, temperature, reward, restart).cpu().numpy()
        return int(a[0]) if single else a

    def _act(
        self, o: Tensor, temperature: float, reward: float | npt.NDArray[Any], restart: bool | npt.NDArray[Any]
    ) -> Tensor:
        z = self.world_model.encode(o)
        if self.policy.config.input == "z":
            return sample_action(self.policy.actor(z), temperature)
        dynamics, rows = self.world_model.dynamics, z.shape[0]
        fresh = torch.as_tensor(np.broadcast_to(restart, rows).copy(), device=z.device)
        r = torch.as_tensor(np.broadcast_to(reward, rows).copy(), dtype=z.dtype, device=z.device)
        if self._history is None or self._h is None or self._h.shape[0] != rows:
            self._history, self._h = dynamics.begin(rows), z.new_zeros(rows, dynamics.config.width)
        h = self._h.masked_fill(fresh[:, None], 0.0)
        a = sample_action(self.policy.actor(self.policy.view(z, h)), temperature)
        self._h = dynamics.step(self._history, z, a, dynamics.squash(r), fresh)
        return a

    def forget(self) -> None:
        """Begin anew: the next observation is the first one."""
        self._history = self._h = None

    @torch.no_grad()
    def refresh(self) -> None:
        """After a change of the weights: what was derived from them alone is derived anew, memories stay."""
        if self._history is not None and self._history.memory is not None:
            self._history.memory.project(self.world_model.dynamics.transformer)

    def state(self) -> dict[str, Any]:
        """What is remembered, for an exact resume; empty for a policy on z."""
        if self._history is None or self._h is None:
            return {}
        history = self._history
        state: dict[str, Any] = {"h": self._h, "episode": history.episode, "previous": history.previous}
        state["step"] = history.step
        if history.memory is not None:
            m, n = history.memory, history.memory.length
            parts = {"k": m.k[..., :n, :], "v": m.v[..., :n, :], "episode": m.episode[:, :n], "step": m.step[:n]}
            state["memory"] = {name: part.contiguous() for name, part in parts.items()}
        else:
            state["inputs"] = {str(i): x for i, x in enumerate(history.inputs)}
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        self.forget()
        if not state:
            return
        device = self.device
        self._h = state["h"].to(device)
        history = self._history = self.world_model.dynamics.begin(self._h.shape[0])
        history.episode, history.previous = state["episode"].to(device), state["previous"].to(device)
        history.step = state["step"]
        if history.memory is not None:
            m, saved = history.memory, state["memory"]
            n = m.length = saved["step"].shape[0]
            m.k[..., :n, :], m.v[..., :n, :] = saved["k"], saved["v"]
            m.episode[:, :n], m.step[:n] = saved["episode"], saved["step"]
        else:
            history.inputs = tuple(state["inputs"][key].to(device) for key in sorted(state["inputs"]))


def build(config: Config, spec: EnvSpec) -> Agent:
    """World model and policy of a configuration, with fresh weights, ready to act."""
    world_model = WorldModel(config.world_model, spec, config.policy.discount)
    return Agent(world_model, ActorCritic(config, spec.num_actions), spec)


def parameter_counts(config: Config, spec: EnvSpec) -> dict[str, int]:
    """Parameters of the modules really built (paper, table "Number of parameters")."""
    agent = build(config, spec)
    parts: dict[str, nn.Module] = {
        "observation": agent.world_model.observation,
        "dynamics": agent.world_model.dynamics,
        "actor": agent.policy.actor,
        "critic": agent.policy.critic,
    }
    return {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()}
