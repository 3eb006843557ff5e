"""Dreams to look at: from a given moment of a real episode, with recorded actions or the policy's.

:func:`twm.imagination.imagine` serves training: it starts anywhere, replaces ended rows and keeps graphs. Here a dream
begins at a chosen step, runs as long as it is asked to and says where it believes the episode to be over.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from twm.agent import Agent
from twm.analysis.recording import Episode
from twm.config import ConfigError
from twm.policy.actor_critic import sample_action
from twm.world_model.open_loop import Choose, Context, Rollout, roll_out
from twm.world_model.world_model import WorldModel

CHUNK = 256  # rows in one pass: bounds the memory of keys and values
CONTEXT = 1  # real steps in front of a dream, as in those that the policy learns from


def encode(world_model: WorldModel, o: npt.NDArray[np.generic], temperature: float = 0.0) -> Tensor:
    """(T, Z) latent states of raw observations (T, C, …), in chunks."""
    device = world_model.dynamics.embed_z.weight.device
    parts = [torch.as_tensor(o[i : i + CHUNK], device=device) for i in range(0, len(o), CHUNK)]
    return torch.cat([world_model.encode(part, temperature) for part in parts])


def decode(world_model: WorldModel, z: Tensor) -> npt.NDArray[np.generic]:
    """(T, C, …) observations of latent states (T, Z) as raw as the environment's, in chunks."""
    return np.concatenate([world_model.decode(part).cpu().numpy() for part in z.split(CHUNK)])


def contexts(episode: Episode, z: Tensor, starts: npt.ArrayLike, k: int = CONTEXT) -> Context:
    """Dreams that begin at the steps ``starts`` of an episode with latent states ``z`` (T, Z)."""
    t = torch.as_tensor(np.asarray(starts, np.int64), device=z.device)
    if t.numel() == 0 or int(t.min()) < 0 or int(t.max()) >= len(episode):
        raise ConfigError(
            f"dreams of an episode of {len(episode)} steps begin at 0..{len(episode) - 1}, got {starts!r}"
        )
    index = (t[:, None] + torch.arange(-k, 1, device=z.device)).clamp(min=0)  # (M, k+1)
    a, r = torch.as_tensor(episode.a, device=z.device), torch.as_tensor(episode.r, device=z.device)
    return Context(z[index], a[index[:, :-1]], r[index[:, :-1]], t.clamp(max=k))


def dream(world_model: WorldModel, context: Context, steps: int, choose: Choose, temperature: float = 1.0) -> Rollout:
    """``steps`` imagined steps from each moment (:func:`twm.world_model.open_loop.roll_out`)."""
    return roll_out(world_model.dynamics, context, steps, choose, temperature)


def recorded(episode: Episode, starts: npt.ArrayLike) -> Choose:
    """The actions that were really taken from each start on; behind the episode's end the last one goes on."""
    t = np.asarray(starts, np.int64)

    def choose(i: int, z: Tensor, _: Tensor) -> Tensor:
        return torch.as_tensor(episode.a[np.minimum(t + i, len(episode) - 1)], device=z.device)

    return choose


def by_policy(agent: Agent) -> Choose:
    """What the policy does in the dream."""

    def choose(_: int, z: Tensor, h: Tensor) -> Tensor:
        with torch.no_grad():
            return sample_action(agent.policy.actor(agent.policy.view(z, h)))

    return choose


def over(world_model: WorldModel, gamma: Tensor) -> Tensor:
    """Steps after which the model believes the episode to have ended."""
    return world_model.over(gamma)


def lengths(world_model: WorldModel, gamma: Tensor) -> list[int]:
    """Steps of each dream (M, H) up to and including the one that ends it; H where none does."""
    ended = over(world_model, gamma)
    first = torch.where(ended.any(1), ended.int().argmax(1) + 1, gamma.shape[1])
    return [int(n) for n in first]
