"""SiLU in C against PyTorch's, and where PyTorch's is taken."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from twm import native
from twm.nn import silu as module
from twm.nn.silu import SiLU, silu


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (16,), (100, 33)])
def test_values_and_gradients(shape: tuple[int, ...]) -> None:
    """Whole vectors and what is left over, from where it is nothing to where it is x."""
    torch.manual_seed(0)
    x = (10 * torch.randn(shape)).requires_grad_()
    g = torch.randn(shape)
    results = []
    for function in (silu, F.silu):
        (gradient,) = torch.autograd.grad(function(x), x, g)
        results.append((function(x).detach(), gradient))
    for ours, plain in zip(*results):
        torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("x", [-1e30, -100.0, -0.0, 100.0, 1e30, torch.inf, torch.nan])
def test_far_out(x: float) -> None:
    """The exponential stops at 2e38, so that -1e30 leaves -4e-9, not 0."""
    actual, expected = silu(torch.tensor([x])), F.silu(torch.tensor([x]))
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-8, equal_nan=True)


@pytest.mark.parametrize("lanes", [["-U__AVX2__", "-U__AVX512F__"], ["-U__AVX512F__"], ["-D__AVX512F__"]], ids=str)
def test_other_processors(lanes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of 4, 8 and 16 numbers, whatever this machine has."""
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, *lanes))
    native._load.cache_clear()
    try:
        test_values_and_gradients((3, 37))
    finally:
        native._load.cache_clear()


def test_a_strided_gradient() -> None:
    x = torch.randn(6, 4, requires_grad=True)
    g = torch.randn(4, 6).t()
    (actual,) = torch.autograd.grad(silu(x), x, g)
    (expected,) = torch.autograd.grad(F.silu(x), x, g)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


def test_pytorch_has_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other types, strided inputs, and where there is no C: then it is PyTorch's to the last bit."""

    def used(x: Tensor) -> bool:
        calls: list[int] = []
        real = module._SiLU.apply
        with monkeypatch.context() as patch:
            patch.setattr(module._SiLU, "apply", lambda *a: calls.append(1) or real(*a))
            SiLU()(x)
        return bool(calls)

    x = torch.randn(4, 4)
    assert used(x) == (native.load(module.SOURCE) is not None)
    assert not used(x.double())
    assert not used(x.t())
    with native.plain_only():
        assert not used(x)
