"""Advantages and weights by hand and against their definitions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from twm.policy.returns import dream_weights, gae


def flags(*rows: list[int]) -> Tensor:
    return torch.tensor(rows).bool()


def test_gae_by_hand() -> None:
    """v = (1, 1, 4), r = (1, 2), γ̂ = (0.5, 0.25), λ = 0.5:
    δ = (1 + 0.5·1 - 1, 2 + 0.25·4 - 1) = (0.5, 2); A₁ = 2; A₀ = 0.5 + 0.5·0.5·2 = 1."""
    r, gamma, values = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.25]]), torch.tensor([[1.0, 1.0, 4.0]])
    assert gae(r, gamma, values, flags([0, 0]), 0.5).tolist() == [[1.0, 2.0]]


def test_gae_does_not_look_across_an_end() -> None:
    """The same, ended after step 0: A₀ = r - v = 0. Ended after step 1: A₁ = 2 - 1 = 1, A₀ = 0.5 + 0.25·1."""
    r, gamma, values = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.25]]), torch.tensor([[1.0, 1.0, 4.0]])
    assert gae(r, gamma, values, flags([1, 0]), 0.5).tolist() == [[0.0, 2.0]]
    assert gae(r, gamma, values, flags([0, 1]), 0.5).tolist() == [[0.75, 1.0]]


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_gae_is_the_sum_of_its_definition(lam: float) -> None:
    """A_t = Σ_k (Π_{i<k} γ̂_{t+i} λ) δ_{t+k}, up to the first end."""
    torch.manual_seed(0)
    M, H = 7, 9
    r, gamma, values = torch.randn(M, H).double(), torch.rand(M, H).double(), torch.randn(M, H + 1).double()
    ended = torch.rand(M, H) < 0.2
    actual = gae(r, gamma, values, ended, lam)
    for m in range(M):
        for t in range(H):
            expected, factor = 0.0, 1.0
            for k in range(t, H):
                follow = 0.0 if ended[m, k] else float(gamma[m, k])
                expected += factor * float(r[m, k] + follow * values[m, k + 1] - values[m, k])
                factor *= follow * lam
            assert float(actual[m, t]) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_lambda_one_is_the_discounted_return() -> None:
    """A + v = r₀ + γ̂₀(r₁ + γ̂₁(r₂ + γ̂₂ v₃))."""
    r, gamma = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.9, 0.5, 0.8]])
    values = torch.tensor([[5.0, -1.0, 2.0, 10.0]])
    advantages = gae(r, gamma, values, flags([0, 0, 0]), 1.0)
    assert float(advantages[0, 0] + 5.0) == pytest.approx(1 + 0.9 * (2 + 0.5 * (3 + 0.8 * 10)))


def test_weights_by_hand() -> None:
    """w_t is the product of the discounts before t; after an end it begins at 1 again."""
    gamma = torch.tensor([[0.9, 0.5, 0.1, 0.8], [0.9, 0.05, 0.7, 0.6]])
    weights = dream_weights(gamma, flags([0, 0, 0, 0], [0, 1, 0, 0]))
    assert weights.tolist() == [pytest.approx([1.0, 0.9, 0.45, 0.045]), pytest.approx([1.0, 0.9, 1.0, 0.7])]
