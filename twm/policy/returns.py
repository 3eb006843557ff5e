"""Returns and weights of dreams: pure functions of predicted rewards, discounts and values."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def gae(
    r: Float[Tensor, "M H"],
    gamma: Float[Tensor, "M H"],
    values: Float[Tensor, "M H_plus_1"],
    ended: Bool[Tensor, "M H"],
    lam: float,
) -> Float[Tensor, "M H"]:
    """Generalised advantage estimation with a discount for each step (paper, section 2.2).

        δ_t = r_t + γ̂_t v_{t+1} - v_t            A_t = δ_t + γ̂_t λ A_{t+1},   A_H = 0

    Where a dream ended after step t, what follows is another dream: γ̂_t counts as 0.
    """
    gamma = gamma.masked_fill(ended, 0.0)
    delta = r + gamma * values[:, 1:] - values[:, :-1]
    advantages = torch.empty_like(delta)
    running = torch.zeros_like(delta[:, 0])
    for t in range(r.shape[1] - 1, -1, -1):
        running = delta[:, t] + gamma[:, t] * lam * running
        advantages[:, t] = running
    return advantages


def dream_weights(gamma: Float[Tensor, "M H"], ended: Bool[Tensor, "M H"]) -> Float[Tensor, "M H"]:
    """w_t = Π_{k<t} γ̂_k, from 1 again after each end: how likely the dream still goes on at step t."""
    weights = torch.empty_like(gamma)
    running = torch.ones_like(gamma[:, 0])
    for t in range(gamma.shape[1]):
        weights[:, t] = running
        running = torch.where(ended[:, t], 1.0, running * gamma[:, t])
    return weights
