"""Scalars as distributions over a symlog grid (DreamerV3): rewards and values of any scale with one loss.

symlog(x) = sign(x)·ln(1 + |x|). A target lies between two grid points; its probability is split over
them so that the mean is exact. The loss is a cross-entropy, whose gradient does not grow with the scale.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


def symlog(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.log1p(torch.abs(x))


def symexp(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.expm1(torch.abs(x))


class TwoHot(nn.Module):
    """Grid of ``bins`` points from symlog(x) = -limit to limit, and the maps between logits and scalars."""

    def __init__(self, bins: int = 63, limit: float = 10.0) -> None:
        super().__init__()
        self.bins = bins
        self.limit = limit
        grid = torch.linspace(-limit, limit, bins)
        # Rounding leaves the middle a little off 0; an antisymmetric grid makes an even distribution mean exactly 0.
        self.register_buffer("grid", (grid - grid.flip(0)) / 2, persistent=False)
        self.grid: Tensor

    def mean(self, logits: Float[Tensor, "*batch bins"]) -> Float[Tensor, "*batch"]:
        """symexp of the expected grid point; sums from both ends keep zero exact for symmetric logits."""
        p = torch.softmax(logits, -1) * self.grid
        return symexp((p + p.flip(-1)).sum(-1) / 2)

    def encode(self, x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch bins"]:
        """The two-hot target of x: weights on the two neighbouring grid points whose mean is symlog(x)."""
        position = (symlog(x).clamp(-self.limit, self.limit) + self.limit) * ((self.bins - 1) / (2 * self.limit))
        # Triangular weights: 1 - |distance in grid steps| where that is positive.
        distance = (position.unsqueeze(-1) - torch.arange(self.bins, device=x.device)).abs()
        return (1 - distance).clamp(min=0)

    def loss(self, logits: Float[Tensor, "*batch bins"], x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """-Σ two-hot(x)·ln p."""
        return -(self.encode(x) * F.log_softmax(logits, -1)).sum(-1)
