"""Vectors of independent categorical variables: the latent states z (paper, section 2.1).

A latent state has V variables of K categories. It travels as a flat one-hot vector z of Z = V·K numbers where
gradients pass through it, and in dreams as its categories c, V whole numbers; its distribution as logits of shape
(..., V, K).
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from twm import native

SOURCE = Path(__file__).with_suffix(".c")

Logits = Float[Tensor, "*batch V K"]
OneHot = Float[Tensor, "*batch Z"]
Categories = Int[Tensor, "*batch V"]


def mix_uniform(logits: Logits, share: float) -> Logits:
    """Log-probabilities of (1 - share)·softmax(logits) + share/K, so that no category dies out (DreamerV3)."""
    if share == 0:
        return logits
    K = logits.shape[-1]
    return torch.log((1 - share) * torch.softmax(logits, -1) + share / K)


def draw(logits: Logits, temperature: float = 1.0, u: Float[Tensor, "*batch V"] | None = None) -> Categories:
    """Categories, by inverting the cumulative distribution: one uniform number ``u`` per variable (None: a fresh one).

    A tenth of the cost of a Gumbel or multinomial draw, which want K numbers or a loop. Temperature
    0 takes the most likely category.
    """
    with torch.no_grad():
        if temperature == 0:
            return logits.argmax(-1)
        cdf = torch.softmax(logits / temperature if temperature != 1 else logits, -1).cumsum(-1)
        u = torch.rand(cdf.shape[:-1], device=cdf.device, dtype=cdf.dtype) if u is None else u
        # The total may fall short of 1 by rounding: scaling u by it keeps the category below K.
        return (cdf <= u.unsqueeze(-1) * cdf[..., -1:]).sum(-1).clamp_(max=logits.shape[-1] - 1)


def sample(logits: Logits, temperature: float = 1.0) -> OneHot:
    """z of :func:`draw`. No gradient; see :func:`straight_through`."""
    return one_hot(draw(logits, temperature), logits.shape[-1], logits.dtype)


def one_hot(c: Categories, K: int, dtype: torch.dtype = torch.float32) -> OneHot:
    """Flat one-hot vectors (..., V·K) of categories (..., V)."""
    z = torch.zeros(c.shape + (K,), dtype=dtype, device=c.device)
    return z.scatter_(-1, c.unsqueeze(-1), 1.0).flatten(-2)


def categories(z: OneHot, K: int) -> Categories:
    """The reverse of :func:`one_hot`."""
    return z.unflatten(-1, (-1, K)).argmax(-1)


class OneHotLinear(nn.Linear):
    """A linear layer on latent states, one-hot or, cheaper, as categories: W z + b = Σ_v W[:, v·K + c_v] + b.

    That is V columns to add up, not Z to multiply with; so columns lie side by side in memory. Parameters are those of
    ``nn.Linear(V * K, outputs)``.
    """

    def __init__(self, variables: int, K: int, outputs: int) -> None:
        super().__init__(variables * K, outputs)
        self.K = K
        self.weight = nn.Parameter(self.weight.detach().t().contiguous().t())
        self.register_buffer("first", torch.arange(variables) * K, persistent=False)  # column of each variable
        self.first: Tensor

    def forward(self, z: Tensor) -> Tensor:
        if z.is_floating_point():
            return F.linear(z, self.weight, self.bias)
        if z.device.type != "cpu" or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
            return F.linear(one_hot(z, self.K, self.weight.dtype), self.weight, self.bias)
        columns = (z + self.first).reshape(-1, len(self.first))  # (rows, V)
        y: Tensor = _AddedColumns.apply(columns, self.weight) + self.bias  # type: ignore[no-untyped-call]
        return y.view(*z.shape[:-1], self.out_features)


class _AddedColumns(torch.autograd.Function):
    """Σ_v W[:, columns_v] of each row. PyTorch's own gradient of it sorts all columns first; C has no need to."""

    @staticmethod
    def forward(ctx: Any, columns: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(columns)
        ctx.like = weight.detach()
        return F.embedding_bag(columns, weight.t(), mode="sum")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        columns = ctx.saved_tensors[0].contiguous()
        # (V·K, outputs), columns of the weight side by side
        total = torch.zeros_like(ctx.like.t(), memory_format=torch.contiguous_format)
        (rows, V), outputs = columns.shape, gradient.shape[-1]
        if (c := _library()) is not None and gradient.dtype == torch.float32 and outputs % c.lanes() == 0:
            g, sizes = gradient.contiguous(), [ctypes.c_int64(size) for size in (rows, V, outputs)]
            pointers = [ctypes.c_void_p(x.data_ptr()) for x in (columns, g, total)]
            c.add_to_columns(pointers[0], *sizes[:2], pointers[1], sizes[2], pointers[2])
        else:
            for v in range(V):
                total.index_add_(0, columns[:, v], gradient)
        return None, total.t()


def _library() -> ctypes.CDLL | None:
    return native.load(SOURCE)


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
