"""Dropout whose random numbers cost less on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEVELS = 1 << 16


class Dropout(nn.Module):
    """Each number becomes 0 with probability p, the others grow by 1 / (1 - p), in training only.

    PyTorch draws a double for each number on a CPU; here 16 bits of a 64-bit draw decide, so p is rounded to a
    multiple of 2⁻¹⁶ there.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def extra_repr(self) -> str:
        return f"p={self.p}"

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        dropped = round(self.p * LEVELS)
        draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
        kept = (draws[: x.numel()] >= dropped - LEVELS // 2).view(x.shape)
        return x * kept.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))
