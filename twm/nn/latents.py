"""Vectors of independent categorical variables: the latent states z (paper, section 2.1).

A latent state has V variables of K categories. It travels as a flat one-hot vector of Z = V·K numbers,
its distribution as logits of shape (..., V, K).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

Logits = Float[Tensor, "*batch V K"]
OneHot = Float[Tensor, "*batch Z"]


def mix_uniform(logits: Logits, share: float) -> Logits:
    """Log-probabilities of (1 - share)·softmax(logits) + share/K, so that no category dies out (DreamerV3)."""
    if share == 0:
        return logits
    K = logits.shape[-1]
    return torch.log((1 - share) * torch.softmax(logits, -1) + share / K)


def sample(logits: Logits, temperature: float = 1.0, u: Float[Tensor, "*batch V"] | None = None) -> OneHot:
    """Draw z by inverting the cumulative distribution: one uniform number ``u`` per variable (None: a fresh one).

    A tenth of the cost of a Gumbel or multinomial draw, which want K numbers or a loop. Temperature
    0 takes the most likely category. No gradient; see :func:`straight_through`.
    """
    with torch.no_grad():
        K = logits.shape[-1]
        if temperature == 0:
            index = logits.argmax(-1)
        else:
            cdf = torch.softmax(logits / temperature if temperature != 1 else logits, -1).cumsum(-1)
            u = torch.rand(cdf.shape[:-1], device=cdf.device, dtype=cdf.dtype) if u is None else u
            # The total may fall short of 1 by rounding: scaling u by it keeps the index below K.
            index = (cdf <= u.unsqueeze(-1) * cdf[..., -1:]).sum(-1).clamp_(max=K - 1)
        return one_hot(index, K, logits.dtype)


def one_hot(index: Tensor, K: int, dtype: torch.dtype = torch.float32) -> OneHot:
    """Flat one-hot vectors (..., V·K) of category indices (..., V)."""
    z = torch.zeros(index.shape + (K,), dtype=dtype, device=index.device)
    return z.scatter_(-1, index.unsqueeze(-1), 1.0).flatten(-2)


def straight_through(z: OneHot, logits: Logits) -> OneHot:
    """z in the forward pass, the probabilities' gradient in the backward pass."""
    p = torch.softmax(logits, -1).flatten(-2)
    return z + (p - p.detach())  # in this order the difference is exactly 0, and z stays one-hot


def entropy(logits: Logits) -> Float[Tensor, "*batch"]:
    """H(p) = -Σ_v Σ_k p ln p, in nats, summed over the variables."""
    log_p = F.log_softmax(logits, -1)
    return -(log_p.exp() * log_p).sum((-2, -1))


def cross_entropy(target: Logits, prediction: Logits) -> Float[Tensor, "*batch"]:
    """H(q, p) = -Σ_v Σ_k q ln p with q of ``target`` and p of ``prediction``, in nats."""
    return -(torch.softmax(target, -1) * F.log_softmax(prediction, -1)).sum((-2, -1))


def max_entropy(V: int, K: int) -> float:
    """The entropy of uniform latents, V·ln K."""
    return V * math.log(K)
