from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from twm.nn.mlp import MLP, initialise_orthogonally


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


@pytest.mark.parametrize("activate_input", [False, True])
def test_forward_by_hand(activate_input: bool) -> None:
    """All weights 2, all biases 1, one unit per layer: 2·silu(2·silu(2x + 1) + 1) + 1."""
    network = MLP(1, 1, 2, 1, activate_input=activate_input)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 2.0)
            nn.init.constant_(module.bias, 1.0)
    x = silu(0.3) if activate_input else 0.3
    expected = 2 * silu(2 * silu(2 * x + 1) + 1) + 1
    assert network(torch.tensor([[0.3]])).item() == pytest.approx(expected, rel=1e-6)


def test_layers() -> None:
    network = MLP(5, 7, 3, 2, norm=True, dropout=0.1)
    kinds = [type(part).__name__ for part in network.hidden]
    assert kinds == ["Linear", "LayerNorm", "SiLU", "Dropout"] * 3
    assert network(torch.zeros(4, 6, 5)).shape == (4, 6, 2)


def test_orthogonal_initialisation() -> None:
    """Rows of a hidden layer are orthogonal with norm √2, those of the output with the given gain; biases are 0."""
    network = MLP(16, 8, 2, 4)
    initialise_orthogonally(network, output_gain=0.01)
    hidden, output = network.hidden[0].weight, network.output.weight
    torch.testing.assert_close(hidden @ hidden.T, 2 * torch.eye(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(output @ output.T, 1e-4 * torch.eye(4), rtol=0, atol=1e-8)
    assert all(not part.bias.any() for part in network.modules() if isinstance(part, nn.Linear))


def test_outputs_are_float32_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert MLP(4, 8, 1, 2)(torch.randn(3, 4)).dtype == torch.float32
    assert MLP(4, 8, 1, 2).double()(torch.randn(3, 4, dtype=torch.float64)).dtype == torch.float64
