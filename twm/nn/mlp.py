"""Multilayer perceptrons: the heads of the dynamics model, actor and critic."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from twm.nn import transformer_step
from twm.nn.dropout import Dropout
from twm.nn.latents import OneHotLinear
from twm.nn.products import Linear


class MLP(nn.Module):
    """``layers`` hidden layers of ``units`` with SiLU between, and a linear output.

    ``activate_input`` applies SiLU to the input first (the dynamics model's heads on h); ``norm`` puts a
    layer norm before each activation. With ``categories`` the inputs are latent states with so many categories a
    variable, one-hot or as categories (:class:`twm.nn.latents.OneHotLinear`). Under bf16 autocast the output is raised
    to float32: it becomes a distribution, a reward or a value, and eight bits are too few to sample from or to sum up.
    """

    def __init__(
        self,
        inputs: int,
        units: int,
        layers: int,
        outputs: int,
        *,
        norm: bool = False,
        dropout: float = 0.0,
        activate_input: bool = False,
        categories: int = 0,
    ) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.SiLU()] if activate_input else []
        width = inputs
        for i in range(layers):
            one_hot = categories and i == 0
            parts.append(OneHotLinear(inputs // categories, categories, units) if one_hot else Linear(width, units))
            if norm:
                parts.append(nn.LayerNorm(units))
            parts.append(nn.SiLU())
            if dropout:
                parts.append(Dropout(dropout))
            width = units
        self.output = Linear(width, outputs)
        self.hidden = nn.Sequential(*parts)
        self._packed: PackedMLP | None = None

    def forward(
        self, x: Float[Tensor, "*batch inputs"] | Int[Tensor, "*batch variables"]
    ) -> Float[Tensor, "*batch outputs"]:
        if self._packed is not None and x.ndim == 2 and not torch.is_grad_enabled():
            return self._packed(x)
        y: Tensor = self.output(self.hidden(x))
        return y.float() if y.dtype == torch.bfloat16 else y


class PackedMLP:
    """The same with linear layers and the activations after them in C (twm/nn/transformer_step.c)."""

    def __init__(self, network: MLP, library: ctypes.CDLL) -> None:
        self._parts: list[Callable[[Tensor], Tensor]] = []
        modules = [module for module in (*network.hidden, network.output) if not isinstance(module, Dropout)]
        while modules:
            module = modules.pop(0)
            if type(module) is Linear:
                activated = bool(modules) and isinstance(modules[0], nn.SiLU)
                if activated:
                    modules.pop(0)
                self._parts.append(transformer_step.PackedLinear(library, module, silu=activated))
            else:
                self._parts.append(module)

    def __call__(self, x: Tensor) -> Tensor:
        for part in self._parts:
            x = part(x)
        return x


@contextmanager
def packed(*networks: MLP) -> Iterator[None]:
    """Inside, their weights do not change and their outputs without gradients come from C, where it can be had."""
    library = transformer_step.library()
    able = library is not None and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
    try:
        for network in networks:
            weight = network.output.weight
            if able and library is not None and weight.device.type == "cpu" and weight.dtype == torch.float32:
                network._packed = None if network.training else PackedMLP(network, library)
        yield
    finally:
        for network in networks:
            network._packed = None


def initialise_orthogonally(network: MLP, output_gain: float) -> None:
    """Orthogonal weights and zero biases, as actor and critic start (facts of the released code)."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            gain = output_gain if module is network.output else 2**0.5
            nn.init.orthogonal_(module.weight, gain)
            nn.init.zeros_(module.bias)
