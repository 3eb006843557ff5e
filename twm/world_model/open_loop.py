"""Dreams of a chosen length from chosen moments: for people, measurements and outside algorithms.

:func:`twm.imagination.imagine` serves training: it starts anywhere, replaces ended rows and keeps graphs. Here a dream
begins where it is told to, follows given actions or a policy, and nothing of what really follows is shown to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from twm.nn import latents
from twm.world_model.dynamics import DynamicsModel

Choose = Callable[[int, Tensor, Tensor], Tensor]
"""Actions (M,) at step i of the dream, in z (M, Z), where h (M, D) was the hidden state before."""


class Context(NamedTuple):
    """The moments where M dreams begin, and up to k real steps of the same episode in front of each."""

    z: Tensor  # (M, k+1, Z) one-hot: z_{t-k} … z_t
    a: Tensor  # (M, k)
    r: Tensor  # (M, k)
    length: Tensor  # (M,) how many of the k steps exist; the others are padding on the left


class Rollout(NamedTuple):
    """M dreams of H steps."""

    z: Tensor  # (M, H+1, Z): z_t … ẑ_{t+H}
    a: Tensor  # (M, H)
    r: Tensor  # (M, H) predicted rewards, on the scale that the model sees
    gamma: Tensor  # (M, H) predicted discounts


class Imagined(NamedTuple):
    """What :meth:`WorldModel.imagine` returns: M dreams of H steps, to look at."""

    o: Tensor  # (M, H+1, *observation) decoded, as raw as real ones: the first is the start as the model sees it
    a: Tensor  # (M, H)
    r: Tensor  # (M, H) predicted rewards
    gamma: Tensor  # (M, H) predicted discounts
    ended: Tensor  # (M, H) bool: the model holds the episode to be over after this step


@torch.no_grad()
def roll_out(
    dynamics: DynamicsModel, context: Context, steps: int, choose: Choose, temperature: float = 1.0
) -> Rollout:
    """``steps`` imagined steps from each moment. Temperature 1 draws the latent states, as training does; 0 takes the
    most likely categories: the model's single best guess."""
    M, k = context.a.shape
    history = dynamics.begin(M, k + steps)
    z, r = context.z[:, 0], dynamics.squash(context.r)
    h = z.new_zeros(M, dynamics.config.width)
    for j in range(k):  # what really happened; the first step that exists begins a history
        begins = (context.length == k - j) & (j > 0)
        h = dynamics.step(history, context.z[:, j], context.a[:, j], r[:, max(j - 1, 0)], begins)
    h = h.masked_fill((context.length == 0)[:, None], 0.0)
    z, reward, restart = context.z[:, k], r[:, -1] if k else z.new_zeros(M), (context.length == 0) & (k > 0)
    taken: list[tuple[Tensor, ...]] = []
    for i in range(steps):
        a = choose(i, z, h)
        h = dynamics.step(history, z, a, reward, restart)
        prediction = dynamics.predict(h, temperature)
        taken.append((z, a, prediction.r_hat, prediction.gamma_hat))
        z = latents.one_hot(prediction.c, dynamics.config.latent_categories, z.dtype)
        reward, restart = prediction.r_hat, torch.zeros_like(restart)
    zs, actions, rewards, gammas = (torch.stack(x, 1) for x in zip(*taken, strict=True))
    return Rollout(torch.cat([zs, z[:, None]], 1), actions, rewards, gammas)


def choice(
    a: Choose | Tensor | npt.ArrayLike, rows: int, steps: int | None, device: torch.device
) -> tuple[Choose, int]:
    """A policy, or actions (M, H) given beforehand, as a policy; and for how many steps."""
    if callable(a):
        if steps is None:
            raise ValueError("a policy can go on for ever: say for how many steps, imagine(o, policy, steps=15)")
        return a, steps
    actions = torch.as_tensor(a, dtype=torch.long, device=device)
    length = actions.shape[-1] if steps is None else steps
    if actions.ndim != 2 or actions.shape[0] != rows or not 1 <= length <= actions.shape[1]:
        raise ValueError(
            f"expected actions ({rows}, H), a row for each dream and at least one step, but got {tuple(actions.shape)}"
            + ("" if steps is None else f" for {steps} steps")
        )
    return (lambda i, _z, _h: actions[:, i]), length


def past(name: str, values: Tensor | npt.ArrayLike | None, shape: tuple[int, int], device: torch.device) -> Tensor:
    """What happened between the k+1 observations in front of each of M dreams: (M, k) actions or rewards."""
    nothing = torch.zeros(shape if shape[1] == 0 else 0)
    found = nothing if values is None else torch.as_tensor(values)
    if tuple(found.shape) != shape:
        raise ValueError(
            f"{shape[0]} dreams with {shape[1] + 1} observations each need {name} of shape {shape}, what happened "
            f"between them, but got {'none' if values is None else tuple(found.shape)}"
        )
    return found.to(device)
