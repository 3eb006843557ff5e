"""Dropout: how much it drops, what it keeps, and when it does nothing."""

from __future__ import annotations

import pytest
import torch

from twm.nn.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_and_mean(p: float) -> None:
    """Of 10⁶ numbers a share p ± 5 standard deviations is dropped; what is kept is 1 / (1 - p), so the mean stays."""
    torch.manual_seed(0)
    y = Dropout(p)(torch.ones(1000, 1000))
    tolerance = 5 * (p * (1 - p) / 1e6) ** 0.5 + 2**-17
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=tolerance)
    assert y.max().item() == pytest.approx(1 / (1 - p), rel=1e-3)
    assert y.double().mean().item() == pytest.approx(1, abs=tolerance / (1 - p))


def test_all_numbers_alike() -> None:
    """No place in the 64-bit draws, and no neighbour, is favoured."""
    torch.manual_seed(0)
    dropped = (Dropout(0.3)(torch.ones(250_000, 4)) == 0).double()
    assert dropped.mean(0).tolist() == pytest.approx([0.3] * 4, abs=0.005)
    assert (torch.corrcoef(dropped.T) - torch.eye(4)).abs().max().item() < 0.01


def test_gradient_is_the_mask() -> None:
    x = torch.randn(7, 3, requires_grad=True)
    y = Dropout(0.5)(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad * x, y)
    assert set(x.grad.unique().tolist()) <= {0.0, 2.0}


def test_does_nothing_in_evaluation_and_at_zero() -> None:
    x = torch.randn(5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_the_same_seed_drops_the_same() -> None:
    x = torch.ones(101)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(Dropout(0.4)(x))
    assert torch.equal(*results)
