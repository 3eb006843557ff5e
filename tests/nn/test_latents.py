"""Categorical latents: sampling, straight-through gradients, entropies, the balanced-KL identity of the appendix."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from twm import native
from twm.nn import latents

CHI2_4 = 18.47  # a chi-squared variable with 4 degrees of freedom lies below this with probability 0.999


def test_one_hot_is_flat() -> None:
    """V = 2 variables of K = 3 categories: categories 2 and 0."""
    z = latents.one_hot(torch.tensor([[2, 0]]), 3)
    assert z.tolist() == [[0, 0, 1, 1, 0, 0]]


def test_sample_inverts_the_cumulative_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """p = (0.1, 0.2, 0.7): u below 0.1 gives category 0, below 0.3 category 1, else 2."""
    u = torch.tensor([0.0, 0.05, 0.15, 0.29, 0.31, 0.999])
    monkeypatch.setattr(torch, "rand", lambda *size, **_: u.reshape(*size))
    logits = torch.tensor([0.1, 0.2, 0.7]).log().expand(6, 1, 3)
    assert latents.sample(logits).argmax(-1).tolist() == [0, 0, 1, 1, 2, 2]
    logits = torch.tensor([0.0, 0.3, 0.7]).log().expand(6, 1, 3)  # not even u = 0 draws what cannot be
    assert latents.sample(logits).argmax(-1).tolist() == [1, 1, 1, 1, 2, 2]


def chi_squared(z: Tensor, p: Tensor) -> float:
    observed, expected = z.double().sum(0), p.double() * z.shape[0]
    return float(((observed - expected).square() / expected).sum())


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5, math.inf])
def test_sample_frequencies(temperature: float) -> None:
    """20,000 draws follow softmax(logits / temperature); infinity is uniform."""
    torch.manual_seed(0)
    logits = torch.tensor([0.05, 0.1, 0.2, 0.25, 0.4]).log()
    z = latents.sample(logits.expand(20_000, 1, 5), temperature)
    assert chi_squared(z, torch.softmax(logits / temperature, -1)) < CHI2_4


def test_variables_are_independent() -> None:
    """The joint frequencies of two fair variables are a quarter each (3 degrees of freedom, 0.999: 16.27)."""
    torch.manual_seed(0)
    z = latents.sample(torch.zeros(20_000, 2, 2))
    pairs = 2 * z[:, 1] + z[:, 3]
    counts = torch.bincount(pairs.long(), minlength=4).double()
    assert float(((counts - 5000) ** 2 / 5000).sum()) < 16.27


def test_temperature_zero_takes_the_most_likely() -> None:
    logits = torch.tensor([[[0.0, 3.0, 1.0], [5.0, -1.0, 4.9]]])
    assert latents.sample(logits, 0.0).tolist() == [[0, 1, 0, 1, 0, 0]]


def test_impossible_categories_are_never_drawn() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf]).expand(100_000, 1, 5)
    assert latents.sample(logits).sum(0)[[0, 2, 4]].tolist() == [0, 0, 0]


def test_samples_are_one_hot_in_every_precision() -> None:
    for dtype in (torch.float32, torch.float64):
        z = latents.sample(torch.randn(50, 3, 7, dtype=dtype))
        assert z.dtype == dtype
        assert torch.equal(z.unflatten(-1, (3, 7)).sum(-1), torch.ones(50, 3, dtype=dtype))


def test_straight_through_by_hand() -> None:
    """Forward: the sample, exactly. Backward: the softmax; for two even logits ∂p₀/∂l₀ = ¼, ∂p₀/∂l₁ = -¼."""
    logits = torch.zeros(1, 1, 2, requires_grad=True)
    z = latents.straight_through(torch.tensor([[1.0, 0.0]]), logits)
    assert z.tolist() == [[1.0, 0.0]]
    z[0, 0].backward()
    assert logits.grad is not None
    assert logits.grad.flatten().tolist() == [0.25, -0.25]


def test_straight_through_stays_exactly_one_hot() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1000, 8, 8)
    z = latents.sample(logits)
    assert torch.equal(latents.straight_through(z, logits), z)


def test_entropy_by_hand() -> None:
    """H(¼, ¾) = ¼ ln 4 + ¾ ln(4/3) = 0.5623; variables add up; uniform latents reach V ln K."""
    p = torch.tensor([0.25, 0.75])
    assert latents.entropy(p.log()[None]).item() == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))
    assert latents.entropy(p.log().expand(3, 2)).item() == pytest.approx(3 * 0.562335, abs=1e-5)
    assert latents.entropy(torch.zeros(32, 32)).item() == pytest.approx(latents.max_entropy(32, 32), rel=1e-6)
    assert latents.max_entropy(32, 32) == 32 * math.log(32)


def test_cross_entropy_by_hand() -> None:
    """H(q, p) for q = (¼, ¾), p = (½, ½) is ln 2; for p = (⅛, ⅞): ¼ ln 8 + ¾ ln(8/7) = 0.6200."""
    q = torch.tensor([[0.25, 0.75]]).log()
    assert latents.cross_entropy(q, torch.zeros(1, 2)).item() == pytest.approx(math.log(2))
    p = torch.tensor([[1 / 8, 7 / 8]]).log()
    assert latents.cross_entropy(q, p).item() == pytest.approx(0.25 * math.log(8) + 0.75 * math.log(8 / 7))
    assert latents.cross_entropy(q, q).item() == pytest.approx(latents.entropy(q).item())


def test_mix_uniform_by_hand() -> None:
    """0.9·(0.7, 0.3) + 0.1/2 = (0.68, 0.32)."""
    logits = torch.tensor([[0.7, 0.3]]).log()
    assert torch.softmax(latents.mix_uniform(logits, 0.1), -1).flatten().tolist() == pytest.approx([0.68, 0.32])
    assert latents.mix_uniform(logits, 0.0) is logits


@pytest.mark.parametrize("balance", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_balanced_kl_has_the_gradient_of_the_balanced_cross_entropy(balance: float) -> None:
    """Appendix: ∇[λ KL(sg q ‖ p) + (1-λ) KL(q ‖ sg p)] = ∇[λ₁ H(sg q, p) + λ₂ H(q, sg p) - λ₃ H(q)]
    with λ₁ = λ, λ₂ = λ₃ = 1 - λ and parameters θ shared by q and p. KL by torch.distributions."""
    torch.manual_seed(1)
    theta = torch.randn(10, dtype=torch.float64, requires_grad=True)
    to_q, to_p = torch.randn(10, 12, dtype=torch.float64), torch.randn(10, 12, dtype=torch.float64)
    q, p = (theta @ to_q).view(3, 4), (theta @ to_p).view(3, 4)

    def kl(left: Tensor, right: Tensor) -> Tensor:
        return kl_divergence(Categorical(logits=left), Categorical(logits=right)).sum()

    dreamer = balance * kl(q.detach(), p) + (1 - balance) * kl(q, p.detach())
    ours = (
        balance * latents.cross_entropy(q.detach(), p)
        + (1 - balance) * latents.cross_entropy(q, p.detach())
        - (1 - balance) * latents.entropy(q)
    )
    (expected,) = torch.autograd.grad(dreamer, theta, retain_graph=True)
    (actual,) = torch.autograd.grad(ours, theta)
    assert actual.norm() > 0.1
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_categories_and_one_hot_vectors_give_the_same(dtype: torch.dtype) -> None:
    """Outputs and gradients of the layer, and both ways of writing a state."""
    torch.manual_seed(0)
    layer = latents.OneHotLinear(3, 7, 5).to(dtype)
    c = torch.randint(7, (4, 2, 3))
    z = latents.one_hot(c, 7, dtype)
    assert torch.equal(latents.categories(z, 7), c)
    outputs, gradients = [], []
    for x in (z, c):
        y = layer(x)
        (y * torch.arange(5)).square().sum().backward()
        outputs.append(y.detach())
        gradients.append([layer.weight.grad.clone(), layer.bias.grad.clone()])  # type: ignore[union-attr]
        layer.zero_grad()
    torch.testing.assert_close(outputs[1], outputs[0])
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(outputs[0], torch.nn.functional.linear(z, layer.weight, layer.bias).detach())


def test_the_layer_has_the_parameters_of_a_linear_one() -> None:
    """Same names, shapes and numbers from the same seed, with columns side by side in memory, also in a copy."""
    torch.manual_seed(0)
    layer = latents.OneHotLinear(3, 7, 5)
    torch.manual_seed(0)
    plain = torch.nn.Linear(21, 5)
    assert {name: x.tolist() for name, x in layer.state_dict().items()} == {
        name: x.tolist() for name, x in plain.state_dict().items()
    }
    for each in (layer, copy.deepcopy(layer), latents.OneHotLinear(3, 7, 5).double()):
        assert each.weight.t().is_contiguous()


@pytest.mark.parametrize(("V", "K", "outputs"), [(3, 4, 32), (32, 32, 64), (6, 2, 5)])
def test_gradient_of_added_columns_in_c_and_in_plain(V: int, K: int, outputs: int) -> None:
    """That of the product, whether C adds up or, where outputs do not fill vectors or without C, PyTorch."""
    torch.manual_seed(0)
    layer, c = latents.OneHotLinear(V, K, outputs), torch.randint(K, (50, V))
    g = torch.randn(50, outputs)
    expected = (latents.one_hot(c, K).t() @ g).t()
    layer(c).backward(g)
    torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-5, atol=1e-5)
    layer.weight.grad = None
    with native.plain_only():
        layer(c).backward(g)
    torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-5, atol=1e-5)


def test_gradient_of_added_columns_whatever_the_layout() -> None:
    """Categories and weights that lie in memory in another order."""
    torch.manual_seed(0)
    layer, c = latents.OneHotLinear(3, 4, 32), torch.randint(4, (50, 3))
    g = torch.randn(50, 32)
    expected = (latents.one_hot(c, 4).t() @ g).t()
    layer(c.t().contiguous().t()).backward(g)
    torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer(c.view(5, 10, 3).transpose(0, 1)).transpose(0, 1).flatten(0, 1), layer(c))
    layer.weight = torch.nn.Parameter(layer.weight.detach().contiguous())
    layer(c).backward(g)
    torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-5, atol=1e-5)
