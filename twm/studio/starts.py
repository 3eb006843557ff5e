"""Where dreams begin: states of the replay, latent states from a link, fresh episodes of the real environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twm.replay import Replay
from twm.studio.dream import Model, Start
from twm.studio.protocol import ProtocolError


def from_replay(model: Model, replay: Replay | None, origin: dict[str, Any]) -> Start:
    """An entry of the replay with up to ℓ steps of its episode before it."""
    if replay is None or not len(replay):
        raise ProtocolError("this run has no replay to start from: start from a fresh real episode")
    index, length = origin["index"], len(replay)
    if index >= length:
        raise ProtocolError(f"the replay holds steps 0 to {length - 1:,}, but step {index:,} was asked for")
    reach = model.config.world_model.sequence_length
    begins = replay.is_episode_start[max(0, index - reach) : index + 1]
    since = int(np.argmax(begins[::-1])) if begins.any() else reach
    k = min(since, reach)
    if k == 0:
        return context(model, replay.observations([index]), [], [], origin)
    steps = replay.sequences([index - k + 1], k - 1)  # entries index-k … index-1, and the observation behind them
    return context(model, steps.o[0], steps.a[0], steps.r[0], origin)


def context(
    model: Model, observations: npt.NDArray[Any], a: npt.ArrayLike, r: npt.ArrayLike, origin: dict[str, Any]
) -> Start:
    """Real observations (k+1, …) and the k actions and rewards between them, as the model sees them."""
    agent, c = model.agent, model.config.world_model
    z = agent.world_model.encode(torch.as_tensor(np.ascontiguousarray(observations), device=agent.device))
    categories = z.unflatten(-1, (c.latent_variables, c.latent_categories)).argmax(-1).cpu().numpy()
    rewards = agent.world_model.dynamics.squash(torch.as_tensor(np.asarray(r, np.float32))).numpy()
    return Start(categories, np.asarray(a, np.int64), rewards, origin)


def from_latents(model: Model, origin: dict[str, Any]) -> Start:
    """Latent states and context as a link spells them out."""
    c, actions = model.config.world_model, model.agent.spec.num_actions
    z, a, r = origin["z"], origin["a"], origin["r"]
    k = len(a)
    if k > c.sequence_length or len(z) != k + 1 or len(r) != k:
        raise ProtocolError(
            f"expected k actions, k rewards and k + 1 states with k at most {c.sequence_length}, but came {k} actions, "
            f"{len(r)} rewards and {len(z)} states"
        )
    if any(len(state) != c.latent_variables or max(state) >= c.latent_categories for state in z):
        raise ProtocolError(f"expected states of {c.latent_variables} variables with {c.latent_categories} categories")
    if any(action >= actions for action in a):
        raise ProtocolError(f"expected actions from 0 to {actions - 1}")
    return Start(np.array(z, np.int64), np.array(a, np.int64), np.array(r, np.float32), origin)
