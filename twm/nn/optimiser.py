"""Adam with gradient clipping for one module: everything between ``backward`` and the next update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Optimiser:
    """Fused Adam (eps 1e-5); gradients are clipped to a norm of ``clip`` over the whole module."""

    def __init__(self, module: nn.Module, lr: float, weight_decay: float = 0.0, clip: float = torch.inf) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.adam = torch.optim.Adam(self.parameters, lr=lr, eps=1e-5, weight_decay=weight_decay, fused=True)
        self.clip = clip

    def step(self) -> Tensor:
        """Apply the gradients and clear them; returns their norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return norm

    def state(self) -> dict[str, Any]:
        """Moments and step counts by parameter index: tensors only."""
        return {str(i): dict(slot) for i, slot in self.adam.state_dict()["state"].items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        whole = self.adam.state_dict()
        whole["state"] = {
            int(i): {key: _own(x, self.parameters[int(i)]) for key, x in slot.items()} for i, slot in state.items()
        }
        self.adam.load_state_dict(whole)


def _own(x: Tensor, p: Tensor) -> Tensor:
    """Adam keeps the tensors it is given, updates them in place, and takes moments to lie in memory as p does."""
    return torch.empty_like(p).copy_(x) if x.shape == p.shape else x.clone()
