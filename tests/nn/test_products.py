"""Products in C against the same in double precision, and where PyTorch's are taken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from nn.processors import UNITS, built_for, wide_vectors
from torch import Tensor, nn
from torch.nn import functional as F

from twm import native
from twm.nn import products
from twm.nn.products import Linear

ENOUGH = 1 << 18  # multiply-adds, for products to be taken in the tests


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in training, which has a process for each core
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "WORTH_IT", dict.fromkeys(products.WORTH_IT, ENOUGH))
    monkeypatch.setattr(products, "LEAST", dict.fromkeys(products.LEAST, 48))


@pytest.fixture(params=UNITS)
def in_c(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each way, also where another or PyTorch's products are as fast."""
    with built_for(request.param):
        if not wide_vectors():
            pytest.skip("needs vectors of 16 numbers (AVX-512)")
        assert products.unit() == request.param or request.param == "vectors"
        monkeypatch.setattr(products, "unit", lambda: request.param)
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each product asked for, whether it was taken in C."""
    real, found = products._multiply, []
    monkeypatch.setattr(products, "_multiply", lambda *a, **k: found.append(real(*a, **k)) or found[-1])
    return found


def error(actual: Tensor, x: Tensor, w: Tensor) -> float:
    """The largest, as a share of what float32 may lose in the sum: |x| |w| 2^-24 for each term."""
    exact, size = x.double() @ w.double(), x.abs().double() @ w.abs().double()
    return float(((actual - exact).abs() / (size * 2**-24)).max())


SHAPES = [(128, 128, 128), (48, 500, 90), (333, 49, 161), (97, 65, 2000), (700, 600, 513), (64, 2000, 48)]


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize(("M", "N", "K"), SHAPES)
@pytest.mark.parametrize("x_across", [False, True])
@pytest.mark.parametrize("w_across", [False, True])
def test_as_exact_as_float32(M: int, N: int, K: int, x_across: bool, w_across: bool, calls: list[bool]) -> None:
    """Numbers of all sizes, whole tiles and what is left over, rows or columns side by side, more than one matrix."""
    torch.manual_seed(0)
    x = torch.randn(2, K, M).transpose(1, 2) if x_across else torch.randn(2, M, K)
    w = torch.randn(2, N, K).transpose(1, 2) if w_across else torch.randn(2, K, N)
    x, w = x * torch.logspace(-9, 9, M)[:, None], w * torch.logspace(9, -9, N)
    out = torch.full((2, M, N), torch.nan)
    products.bmm(x, w, out)
    assert calls == [True]
    plain = torch.bmm(x, w)
    for i in range(2):
        assert error(out[i], x[i], w[i]) < max(2.0, 2 * error(plain[i], x[i], w[i]))


@pytest.mark.usefixtures("in_c")
def test_added_to_what_is_there(calls: list[bool]) -> None:
    torch.manual_seed(0)
    x, w, out = torch.randn(3, 100, 700), torch.randn(3, 700, 90), torch.randn(3, 100, 120)[..., :90]
    expected = out.double() + x.double() @ w.double()
    products.baddbmm(x, w, out)
    assert calls == [True]
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("shape", [(2000, 70), (40, 50, 70), (4, 2000, 70)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers(shape: tuple[int, ...], bias: bool, calls: list[bool]) -> None:
    """Outputs and all gradients."""
    torch.manual_seed(0)
    layer, x = Linear(70, 90, bias=bias), torch.randn(shape, requires_grad=True)
    g, parameters = torch.randn(*shape[:-1], 90), list(layer.parameters())
    y = layer(x)
    actual = torch.autograd.grad(y, [x, *parameters], g)
    assert calls == [True] * 3
    plain = F.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
    expected = torch.autograd.grad(plain, [x, *parameters], g.double())
    torch.testing.assert_close(y.double(), plain, rtol=1e-5, atol=1e-5)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("in_c")
def test_only_gradients_that_are_asked_for(calls: list[bool]) -> None:
    layer = Linear(128, 128).requires_grad_(False)
    x = torch.randn(1000, 128, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is None
    assert len(calls) == 2


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("terms", [1, 4, 16])
def test_sums_of_few_products(terms: int) -> None:
    """Rows of zeros but for a few numbers: what tiles leave out does not average out."""
    torch.manual_seed(0)
    x, w = torch.zeros(512, 512), torch.randn(512, 512)
    x.scatter_(1, torch.rand(512, 512).argsort(1)[:, :terms], torch.randn(512, terms))
    out = torch.empty(1, 512, 512)
    products.bmm(x[None], w[None], out)
    assert error(out[0], x, w) < 10


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("bits", [0x7F800000, -0x800000, 0x7FC00000, 0x7FFFFFFF, -1], ids=hex)
@pytest.mark.parametrize("left", [True, False])
def test_infinite_and_not_a_number(bits: int, left: bool) -> None:
    """A diverged model is not mended in secret, whatever the bits of what is not a number."""
    x, w = torch.ones(1, 200, 200), torch.ones(1, 200, 200)
    (x[0] if left else w[0].t()).view(torch.int32)[7, 9] = bits
    out = torch.empty(1, 200, 200)
    products.bmm(x, w, out)
    out = out[0] if left else out[0].t()
    others = torch.arange(200) != 7
    assert not out[7].isfinite().any()
    assert (out[others] == 200).all()


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e3, 1e30])
@pytest.mark.parametrize("across", [False, True])
def test_numbers_of_any_size(size: float, across: bool) -> None:
    """Far outside the range of 16 bits, rows of zeros among them."""
    torch.manual_seed(0)
    x, w = torch.randn(1, 200, 200) * size, torch.randn(1, 200, 200) / size
    x[0, 5] = 0
    x = x.transpose(1, 2).contiguous().transpose(1, 2) if across else x
    out = torch.empty(1, 200, 200)
    products.bmm(x, w, out)
    exact = x.double() @ w.double()
    assert (out[0, 5] == 0).all()
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5 * exact.std().item())


@pytest.mark.parametrize("x", [torch.randn(300, 200).double(), torch.randn(10, 200)], ids=["double", "few rows"])
def test_pytorch_has_the_rest(x: Tensor, calls: list[bool]) -> None:
    layer = Linear(200, 100).to(x.dtype)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert calls == []


def test_plain_where_it_is_asked_for(calls: list[bool]) -> None:
    layer, x = Linear(200, 100), torch.randn(300, 200)
    with native.plain_only():
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert calls == []


def test_not_with_several_threads(calls: list[bool]) -> None:
    torch.set_num_threads(2)
    x, layer = torch.randn(300, 200), Linear(200, 100)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert calls == []


def test_parameters_are_those_of_a_linear_layer() -> None:
    torch.manual_seed(0)
    ours = Linear(5, 3)
    torch.manual_seed(0)
    theirs = nn.Linear(5, 3)
    assert {k: v.tolist() for k, v in ours.state_dict().items()} == {
        k: v.tolist() for k, v in theirs.state_dict().items()
    }
