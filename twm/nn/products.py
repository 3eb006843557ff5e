"""Matrix products of float32 in C (products.c): on the tile registers of recent Intel processors, to about
float32's precision, and on the wide vectors of AMD's, for which PyTorch's library is not made; PyTorch's own everywhere
else, and where the products are too small to gain.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from twm import native

SOURCE = Path(__file__).with_suffix(".c")

# Rows, columns and inputs at least, and multiply-adds at least, of each product on tiles, for which operands are split,
# and of all products of a call on vectors (measured on the updates of both presets, docs/performance.md).
LEAST = {"tiles of float16": 96, "tiles of bfloat16": 96, "vectors": 24}
WORTH_IT = {"tiles of float16": 1 << 24, "tiles of bfloat16": 1 << 24, "vectors": 1 << 21}


def unit() -> str | None:
    """What products are taken on here, a key of :data:`WORTH_IT`, or None where PyTorch's are as fast."""
    return None if (c := native.load(SOURCE)) is None else _unit(c)


@functools.cache  # a virtual machine may take long to say what its processor is
def _unit(c: ctypes.CDLL) -> str | None:
    function = c.unit
    function.restype = ctypes.c_char_p
    name: bytes | None = function()
    return None if name is None else name.decode()


def worth_it(count: int, M: int, N: int, K: int) -> bool:
    """Whether ``count`` products of (M, K) and (K, N) are large enough, where there is a unit."""
    name = unit()
    if name is None or min(M, N, K) < LEAST[name]:
        return False
    return (count if name == "vectors" else 1) * M * N * K >= WORTH_IT[name]


def fits(*operands: Tensor) -> bool:
    """Whether products of these are taken here, by one thread: else PyTorch's threads are better."""
    return (
        all(x.device.type == "cpu" and x.dtype == torch.float32 for x in operands)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and torch.get_num_threads() == 1
        and unit() is not None
    )


def bmm(x: Tensor, w: Tensor, out: Tensor) -> None:
    """out = x w, (P, M, K) and (P, K, N)"""
    if not _multiply(x, w, out, None, add=False):
        torch.bmm(x, w, out=out)


def baddbmm(x: Tensor, w: Tensor, out: Tensor) -> None:
    """out += x w"""
    if not _multiply(x, w, out, None, add=True):
        out.baddbmm_(x, w)


class Linear(nn.Linear):
    """``nn.Linear``, with its products and those of its gradients taken here where that is faster."""

    def forward(self, x: Tensor) -> Tensor:
        # Whether it fits comes first: while a model is exported, sizes are symbols.
        if not fits(x, self.weight) or not worth_it(
            1, x.numel() // self.in_features, self.out_features, self.in_features
        ):
            return F.linear(x, self.weight, self.bias)
        y: Tensor = _Linear.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return y


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y = x.new_empty(*x.shape[:-1], len(weight))
        if not _multiply(x.flatten(0, -2)[None], weight.t()[None], y.view(1, -1, len(weight)), bias, add=False):
            return F.linear(x, weight, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad
        x, g = x.flatten(0, -2), gradient.flatten(0, -2)
        of_x = of_weight = None
        if need_x:
            of_x = torch.empty_like(x, memory_format=torch.contiguous_format)
            bmm(g[None], weight[None], of_x[None])
            of_x = of_x.view(*gradient.shape[:-1], -1)
        if need_weight:
            of_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
            bmm(g.t()[None], x[None], of_weight[None])
        return of_x, of_weight, g.sum(0) if need_bias else None


def _multiply(x: Tensor, w: Tensor, out: Tensor, bias: Tensor | None, *, add: bool) -> bool:
    """Whether it was done."""
    (P, M, K), N = x.shape, w.shape[2]
    if not (fits(x, w, out) and worth_it(P, M, N, K)) or out.stride(2) != 1:
        return False
    x, w = (y if 1 in y.stride()[1:] else y.contiguous() for y in (x, w))
    c = native.load(SOURCE)
    assert c is not None
    strides = [(ctypes.c_ssize_t * 3)(*y.stride()) for y in (x, w, out)]
    begin = None if bias is None else bias.detach().contiguous()
    pointers = [ctypes.c_void_p(None if y is None else y.data_ptr()) for y in (x, w, begin, out)]
    done = c.multiply(
        *(P, M, N, K), pointers[0], strides[0], pointers[1], strides[1], pointers[2], add, pointers[3], strides[2]
    )
    if done != 0:
        raise MemoryError(f"no memory for {P} products of ({M}, {K}) and ({K}, {N})")
    return True
