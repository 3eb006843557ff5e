"""The fast convolutions equal PyTorch's, forwards and backwards, at any size, and Winograd's tables are right."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from twm import native
from twm.config import ConfigError
from twm.nn import conv, conv_cpu, conv_passes
from twm.nn.conv import Conv2d, ConvTranspose2d
from twm.nn.conv_plan import WINOGRAD, Axis, Plan, choose

Layer = Conv2d | ConvTranspose2d


@pytest.fixture(autouse=True, scope="module")
def none_is_small() -> Iterator[None]:
    """The layers here are small, but not to be left to PyTorch."""
    before, conv.SMALL = conv.SMALL, 0
    yield
    conv.SMALL = before


def make_layer(
    transposed: bool, *arguments: int, activation: bool = False, dtype: torch.dtype = torch.float64
) -> Layer:
    torch.manual_seed(0)
    return (ConvTranspose2d if transposed else Conv2d)(*arguments, activation=activation).to(dtype)


def gradients(layer: Layer, x: Tensor, plain: bool) -> list[Tensor]:
    """The output and the gradients of a random projection of it: of the input, the weight and the bias."""
    x = x.detach().requires_grad_()
    layer.zero_grad()
    with native.plain_only() if plain else nullcontext():
        y = layer(x)
    projection = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y.dtype)
    (y * projection).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return [y.detach(), x.grad, layer.weight.grad.clone(), layer.bias.grad.clone()]


def assert_equal(layer: Layer, x: Tensor, tolerance: float = 1e-10) -> None:
    """Largest difference, relative to the largest number, within the tolerance."""
    for fast, plain in zip(gradients(layer, x, plain=False), gradients(layer, x, plain=True)):
        assert fast.shape == plain.shape
        assert (fast - plain).abs().max() <= tolerance * plain.abs().max()


def force(monkeypatch: pytest.MonkeyPatch, winograd: bool) -> None:
    """Make every layer that can use this algorithm, however small: the cost model would choose the direct one."""
    monkeypatch.setattr(Plan, "cost", lambda plan, batch: float(plan.winograd != winograd))
    choose.cache_clear()


@pytest.fixture(autouse=True)
def _no_cached_plans() -> None:
    choose.cache_clear()


def test_convolution_by_hand() -> None:
    """One channel, kernel 2, stride 1, weight [[1, 2], [3, 4]] on [[1, 0, 2], [0, 1, 0], [3, 0, 1]], bias ½."""
    layer = make_layer(False, 1, 1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
        layer.bias.fill_(0.5)
    x = torch.tensor([[1.0, 0, 2], [0, 1, 0], [3, 0, 1]], dtype=torch.float64).view(1, 3, 3, 1)
    assert layer(x).squeeze().tolist() == [[5.5, 7.5], [11.5, 5.5]]


def test_transposed_convolution_by_hand() -> None:
    """Two pixels, 1 and 10, kernel 3, stride 2: the kernels 1 2 3 overlap in one column, 3 + 10."""
    layer = make_layer(True, 1, 1, 3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 3.0]).expand(1, 1, 3, 3))
        layer.bias.zero_()
    y = layer(torch.tensor([1.0, 10.0], dtype=torch.float64).view(1, 1, 2, 1))
    assert y.squeeze().tolist() == [[1, 2, 13, 20, 30]] * 3


@pytest.mark.parametrize("taps", WINOGRAD)
def test_winograd_tables_are_exact(taps: int) -> None:
    """y_j = Σ_i w_i x_{i+j}: the coefficient of w_i x_k in y_j is 1 where k = i + j, else 0, in fractions."""
    V, U, T = ([[Fraction(number) for number in row] for row in table] for table in WINOGRAD[taps])
    for j, i, k in product(range(2), range(taps), range(taps + 1)):
        assert sum(U[p][j] * T[p][i] * V[p][k] for p in range(taps + 1)) == (k == i + j)


PAPER = [  # transposed, inputs, outputs, kernel, size, Winograd
    (False, 4, 48, 4, 64, False),
    (False, 48, 96, 4, 31, True),
    (False, 96, 192, 4, 14, True),
    (False, 192, 384, 4, 6, True),
    (True, 768, 192, 5, 1, False),
    (True, 192, 96, 5, 5, False),
    (True, 96, 48, 6, 13, True),
    (True, 48, 4, 6, 30, False),
]


@pytest.mark.parametrize(("transposed", "inputs", "outputs", "kernel", "size", "winograd"), PAPER)
def test_layers_of_the_paper(
    transposed: bool, inputs: int, outputs: int, kernel: int, size: int, winograd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single precision, SiLU, the algorithm that a batch of 1,600 gets, and chunks of unequal sizes on two threads."""
    layer = make_layer(transposed, inputs, outputs, kernel, 2, activation=True, dtype=torch.float32)
    far = layer.output_size(size)
    sides = [(size, size, inputs), (far, far, outputs)]
    if transposed:
        sides.reverse()
    assert choose(kernel, 2, 0, sides[0], sides[1], 1600).winograd == winograd
    force(monkeypatch, winograd)
    monkeypatch.setattr(Plan, "images_per_chunk", lambda plan, chunk_bytes: 2)
    torch.manual_seed(1)
    assert_equal(layer, torch.randn(5, size, size, inputs), 2e-5)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("winograd", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=["double", "C"])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_geometry(
    transposed: bool, winograd: bool, dtype: torch.dtype, tolerance: float, data: st.DataObject
) -> None:
    """Both algorithms, in double precision and, with their passes in C, in single precision, on odd sizes, uneven
    strides, padding and batches that no chunk divides."""
    kernel = data.draw(st.integers(1, 6), "kernel")
    stride = data.draw(st.integers(1, 4), "stride")
    padding = data.draw(st.integers(0, kernel - 1), "padding")
    smallest = -(-(2 * padding + 1) // stride) + 1 if transposed else max(kernel - 2 * padding, 1)
    rows, columns = (data.draw(st.integers(smallest, smallest + 6), name) for name in ("rows", "columns"))
    inputs, outputs, batch = (data.draw(st.integers(1, 5), name) for name in ("inputs", "outputs", "batch"))
    layer = make_layer(
        transposed, inputs, outputs, kernel, stride, padding, activation=data.draw(st.booleans(), "SiLU"), dtype=dtype
    )
    x = torch.randn(batch, rows, columns, inputs, dtype=dtype, generator=torch.Generator().manual_seed(2))
    with pytest.MonkeyPatch.context() as monkeypatch:
        force(monkeypatch, winograd)
        monkeypatch.setattr(Plan, "images_per_chunk", lambda plan, chunk_bytes: 2)
        assert_equal(layer, x, tolerance)


@pytest.mark.parametrize("winograd", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_are_derivatives(transposed: bool, winograd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against finite differences, not against another implementation."""
    force(monkeypatch, winograd)
    layer = make_layer(transposed, 2, 3, 4, 2, activation=True)
    x = torch.randn(2, 6, 4, 2, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(layer, {"weight": weight, "bias": bias}, x)
        return y

    assert torch.autograd.gradcheck(function, (x, layer.weight, layer.bias), fast_mode=True)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "C"])
def test_strided_inputs_and_gradients(transposed: bool, dtype: torch.dtype) -> None:
    """A permuted view, a gradient that is one number expanded, and the same layer twice in one graph."""
    layer = make_layer(transposed, 3, 3, 3, 1, 1, dtype=dtype)
    x = torch.randn(2, 3, 5, 6, dtype=dtype)
    results = []
    for function in (layer, layer.plain):
        leaf = x.clone().requires_grad_()
        y = function(function(leaf.permute(0, 2, 3, 1)))
        y.sum().backward()
        assert leaf.grad is not None
        results.append((y, leaf.grad))
    for fast, plain in zip(*results):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-4 if dtype == torch.float32 else 1e-10)


@pytest.mark.skipif(native.load(conv_passes.SOURCE) is None, reason="needs the C file")
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_passes_in_c(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Used in single precision, with vectors of 4, 8 and 16 numbers, and equal to PyTorch's, which run without C."""
    layer, x = make_layer(False, 8, 8, 4, 2, activation=True, dtype=torch.float32), torch.randn(2, 9, 9, 8)
    force(monkeypatch, True)
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, f"-DLANES={lanes}"))

    def anew() -> list[Tensor]:
        native._load.cache_clear()
        conv_cpu._kept_workspace.cache_clear()
        return gradients(layer, x, plain=False)

    with monkeypatch.context() as patch:
        patch.setattr(conv_cpu, "run", lambda steps: 1 / 0)
        fast = anew()
    with monkeypatch.context() as patch:
        patch.setenv("TWM_NATIVE", "0")
        plain = anew()
    native._load.cache_clear()
    conv_cpu._kept_workspace.cache_clear()
    for a, b in zip(fast, plain):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_without_gradients(transposed: bool) -> None:
    """No gradient, none of the input (frames), none of the parameters (frozen): same numbers, no more work kept."""
    layer = make_layer(transposed, 4, 8, 4, 2, activation=True)
    x = torch.randn(3, 9, 9, 4, dtype=torch.float64)
    with torch.no_grad():
        y = layer(x)
    assert not y.requires_grad
    torch.testing.assert_close(y, layer.plain(x).detach())
    with torch.inference_mode():
        torch.testing.assert_close(layer(x.clone()), y)

    layer(x).sum().backward()
    assert x.grad is None
    assert layer.weight.grad is not None

    frozen = copy.deepcopy(layer).requires_grad_(False)
    x.requires_grad_()
    (expected,) = torch.autograd.grad(layer.plain(x).sum(), x)
    (actual,) = torch.autograd.grad(frozen(x).sum(), x)
    torch.testing.assert_close(actual, expected)
    assert frozen.weight.grad is None


def test_same_result_every_time_and_on_any_thread_count() -> None:
    """Bitwise equal from run to run; with another number of threads, sums run in another order."""
    layer = make_layer(False, 48, 96, 4, 2, activation=True, dtype=torch.float32)
    x = torch.randn(40, 15, 15, 48)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 2, 3):
            torch.set_num_threads(threads)
            results.append(gradients(layer, x, plain=False))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    one, two, again, three = results
    assert all(torch.equal(a, b) for a, b in zip(two, again))
    for other in (two, three):
        for a, b in zip(one, other):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_a_worker_passes_its_error_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "images_per_chunk", lambda plan, chunk_bytes: 1)
    monkeypatch.setattr(conv_cpu, "run", lambda steps: 1 / 0)
    layer = make_layer(False, 1, 1, 2)
    with pytest.raises(ZeroDivisionError):
        layer(torch.zeros(4, 3, 3, 1, dtype=torch.float64))


@pytest.mark.parametrize(("channels", "kernel", "fast"), [(8, 4, False), (9, 4, True), (8, 6, True)])
def test_small_layers_are_left_to_pytorch(
    channels: int, kernel: int, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "SMALL", 64)
    monkeypatch.setattr(conv, "forward", lambda *_, **__: 1 / 0)
    layer = make_layer(False, 8, channels, kernel, 2).requires_grad_(False)
    x = torch.zeros(1, 8, 8, 8, dtype=torch.float64)
    if fast:
        with pytest.raises(ZeroDivisionError):
            layer(x)
    else:
        assert torch.equal(layer(x), layer.plain(x))


@pytest.mark.parametrize("transposed", [False, True])
def test_parameters_are_those_of_pytorch(transposed: bool) -> None:
    """Names, shapes, and numbers from the same seed up to the order of drawing: same bounds, same state dict."""
    reference = (nn.ConvTranspose2d if transposed else nn.Conv2d)(6, 10, 4, 2)
    layer = make_layer(transposed, 6, 10, 4, 2, dtype=torch.float32)
    assert {k: v.shape for k, v in layer.state_dict().items()} == {
        k: v.shape for k, v in reference.state_dict().items()
    }
    bound = 1 / (layer.weight.shape[1] * 16) ** 0.5
    for parameter, other in zip(layer.parameters(), reference.parameters()):
        assert parameter.abs().max() <= bound
        assert other.abs().max() <= bound
    assert layer.weight.abs().max() > 0.99 * bound
    layer.load_state_dict(reference.state_dict())
    x = torch.randn(2, 9, 9, 6)
    torch.testing.assert_close(layer(x), reference(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


@pytest.mark.parametrize("transposed", [False, True])
def test_optimiser_keeps_the_layout(transposed: bool) -> None:
    """A step of Adam moves fast and plain alike, though weights are channels-last; and weights stay so, so that packing
    them is free."""
    fast = make_layer(transposed, 4, 6, 4, 2, dtype=torch.float32)
    plain = copy.deepcopy(fast)
    x = torch.randn(2, 8, 8, 4)
    fast(x).square().sum().backward()
    plain.plain(x).square().sum().backward()
    for layer in (fast, plain):
        torch.optim.Adam(layer.parameters(), fused=True).step()
        assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(fast.weight, plain.weight, rtol=1e-4, atol=1e-5)


def test_mixed_precision_and_export_take_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make_layer(False, 4, 8, 4, 2, activation=True, dtype=torch.float32)
    x = torch.randn(2, 10, 10, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    half = copy.deepcopy(layer).bfloat16()
    assert half(x.bfloat16()).dtype == torch.bfloat16
    exported = torch.export.export(layer, (x,))
    assert any("conv2d" in str(node.target) for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(x), layer(x))


def test_an_empty_batch() -> None:
    assert make_layer(False, 2, 3, 4, 2)(torch.zeros(0, 8, 8, 2, dtype=torch.float64)).shape == (0, 3, 3, 3)


def test_a_small_batch_stays_direct() -> None:
    """Acting on one frame must not transform a weight of millions of numbers first."""
    sides = (6, 6, 192), (2, 2, 384)
    assert not choose(4, 2, 0, *sides, 1).winograd
    assert choose(4, 2, 0, *sides, 1600).winograd


def test_multiplications_saved() -> None:
    """14 x 14 outputs, kernel 4, stride 2: 7 x 7 windows of 9 products of depth 4C, against 196 of depth 16C."""
    direct, winograd = (Plan(*[Axis(4, 2, 0, 31, 14, w)] * 2, wide=48, narrow=96).products for w in (False, True))
    assert direct == (1, 196, 16 * 48)
    assert winograd == (9, 49, 4 * 48)


def test_errors_say_what_to_do() -> None:
    layer = make_layer(False, 3, 8, 4, 2)
    with pytest.raises(ConfigError, match=r"expected images \(N, H, W, 3\), but got \(1, 3, 8, 8\)"):
        layer(torch.zeros(1, 3, 8, 8))
    with pytest.raises(ConfigError, match=r"images of 3 x 8 are too small for kernel 4"):
        layer(torch.zeros(1, 3, 8, 3))
    with pytest.raises(ConfigError, match="a padding below the kernel's"):
        Conv2d(3, 8, 2, padding=2)
