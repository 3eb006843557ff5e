"""The C file against the plain layers, which other tests hold against the formula."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from nn.processors import UNITS, built_for, wide_vectors
from torch import Tensor, nn

from twm import native
from twm.nn import transformer_step
from twm.nn.mlp import MLP, packed
from twm.nn.transformer_xl import Memory, TransformerXL

pytestmark = pytest.mark.skipif(transformer_step.library() is None, reason="needs the C file")

CLOSE = {"rtol": 1e-5, "atol": 2e-5}


def make(norm: str = "post", width: int = 64, layers: int = 3, heads: int = 2, feedforward: int = 96) -> TransformerXL:
    """Random in every parameter, also those that start at 0 or 1, so that none can hide."""
    torch.manual_seed(0)
    transformer = TransformerXL(width, layers, heads, feedforward, dropout=0.1, norm=norm).eval()
    for parameter in transformer.parameters():
        nn.init.normal_(parameter, std=0.1 if parameter.ndim > 1 else 0.5)
    return transformer


@torch.no_grad()
def steps(transformer: TransformerXL, rows: int, sizes: list[int], room: int, *, plain: bool) -> Tensor:
    """Outputs (rows, steps, D) of new tokens, ``sizes`` at a time, with random masks."""
    torch.manual_seed(1)
    memory = Memory(transformer, rows, reach=7, room=room)
    assert memory.packed is not None
    if plain:
        memory.packed = None
    outputs = []
    for t, T in enumerate(sizes):
        start = memory.extend(torch.zeros(rows, T, dtype=torch.long), torch.full((T,), t))
        n = memory.length
        allowed = (torch.rand(rows, T, n) < 0.6).tril(n - T)
        allowed[:, range(T), range(n - T, n)] = True  # each token may at least look at itself
        x = torch.randn(rows, T, transformer.width)
        outputs.append(transformer(x, allowed, spacing=T, memory=memory, start=start))
    return torch.cat(outputs, 1)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("rows", [1, 5, 33, 100])  # less than a tile, a tile and a bit, a block and a bit, several
@pytest.mark.parametrize("sizes", [[1] * 12, [2] + [3] * 11, [2] * 12], ids=["one", "three", "two"])
def test_equals_the_plain_layers(norm: str, rows: int, sizes: list[int]) -> None:
    """Also when the memory is full and tokens move to its front: there is room for 20."""
    transformer = make(norm)
    expected = steps(transformer, rows, sizes, 20, plain=True)
    actual = steps(transformer, rows, sizes, 20, plain=False)
    torch.testing.assert_close(actual, expected, **CLOSE)


@pytest.mark.parametrize(
    ("width", "heads", "feedforward"),
    [(32, 1, 32), (64, 4, 32), (64, 2, 96), (128, 2, 512), (256, 4, 1024), (512, 1, 64)],
)
def test_other_sizes(width: int, heads: int, feedforward: int) -> None:
    """A feedforward layer narrower than the width, heads of 16 and of 512 numbers, and the paper's."""
    transformer = make("post", width, 2, heads, feedforward)
    expected = steps(transformer, 37, [2, 3, 3, 3], 51, plain=True)
    torch.testing.assert_close(steps(transformer, 37, [2, 3, 3, 3], 51, plain=False), expected, **CLOSE)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_other_processors(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of 4, 8 and 16 numbers, no tiles, whatever this machine has: the compiler makes them of what there is."""
    monkeypatch.setattr(native, "tiles", lambda: False)
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, f"-DLANES={lanes}"))
    native._load.cache_clear()
    library = transformer_step.library()
    assert library is not None
    assert library.lanes() == lanes
    transformer = make()
    expected = steps(transformer, 37, [2, 3, 3, 3], 51, plain=True)
    actual = steps(transformer, 37, [2, 3, 3, 3], 51, plain=False)
    native._load.cache_clear()
    torch.testing.assert_close(actual, expected, **CLOSE)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("rows", [1, 33, 70, 310])
def test_other_products(norm: str, rows: int) -> None:
    """On tiles of both kinds and on vectors, whatever this machine has; and not the same in secret."""
    transformer = make(norm, 128, 2, 2, 416)
    expected = steps(transformer, rows, [2, 3, 3, 3], 51, plain=True)
    results = []
    for unit in UNITS:
        with built_for(unit):
            results.append(steps(transformer, rows, [2, 3, 3, 3], 51, plain=False))
            different = wide_vectors()
        torch.testing.assert_close(results[-1], expected, **CLOSE)
    if different:
        assert not any(torch.equal(x, y) for x, y in itertools.combinations(results, 2))


def test_it_is_really_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """In dreams, and not where gradients, attention weights, dropout or other outputs are wanted."""
    transformer, called = make(), []
    real = transformer_step.PackedTransformer.step
    monkeypatch.setattr(transformer_step.PackedTransformer, "step", lambda self, *a: called.append(1) or real(self, *a))
    memory = Memory(transformer, 2, reach=9, room=30)
    x = torch.randn(2, 3, 64)

    def step(**options: object) -> int:
        called.clear()
        start = memory.extend(torch.zeros(2, 3, dtype=torch.long), torch.zeros(3, dtype=torch.long))
        allowed = torch.ones(2, 3, memory.length, dtype=torch.bool).tril(memory.length - 3)
        transformer(x, allowed, memory=memory, start=start, **{"spacing": 3, **options})
        return len(called)

    with torch.no_grad():
        assert step() == 1
        assert step(weights=[]) == 0
        assert step(spacing=1) == 0
        transformer.train()
        assert step() == 0
        transformer.eval()
    assert step() == 0


def test_none_for_what_it_was_not_made_for() -> None:
    def of(transformer: TransformerXL) -> object:
        return transformer_step.PackedTransformer.of(transformer, transformer.positions(5))

    assert of(make()) is not None
    assert of(make().double()) is None
    assert of(make(width=60)) is None
    with native.plain_only():
        assert of(make()) is None


def test_a_strided_mask() -> None:
    transformer = make()
    masks = torch.ones(300, 1, 9, dtype=torch.bool)
    with torch.no_grad():
        for plain in (True, False):
            memory = Memory(transformer, 300, reach=9, room=30)
            memory.packed = None if plain else memory.packed
            for i in range(5):
                torch.manual_seed(i)
                start = memory.extend(torch.zeros(300, 1, dtype=torch.long), torch.tensor([i]))
                y = transformer(torch.randn(300, 1, 64), masks[..., : i + 1], memory=memory, start=start)
            if plain:
                expected = y
    torch.testing.assert_close(y, expected, **CLOSE)


@torch.no_grad()
def test_memories_can_be_copied_and_outlive_a_switch() -> None:
    """What is packed holds no pointers; a memory made without room for whole vectors stays with the plain layers."""
    transformer = make()
    assert copy.deepcopy(Memory(transformer, 2, reach=9, room=30)).packed is not None
    with native.plain_only():
        memory = Memory(transformer, 2, reach=9, room=21)
    memory.project(transformer)
    assert memory.packed is None


def test_weights_are_not_packed_for_those_who_watch_attention() -> None:
    assert Memory(make(), 2, reach=9, room=30, in_c=False).packed is None


def test_large_scores_and_not_a_number() -> None:
    """Scores of hundreds are what the softmax makes of them, and a diverged model is not mended in secret."""
    transformer = make()
    with torch.no_grad():
        transformer.u.fill_(300.0)
    expected = steps(transformer, 5, [3] * 4, 20, plain=True)
    torch.testing.assert_close(steps(transformer, 5, [3] * 4, 20, plain=False), expected, rtol=1e-4, atol=1e-3)
    with torch.no_grad():
        transformer.layers[0].expand.bias[0] = torch.nan  # type: ignore[union-attr, index]
    assert steps(transformer, 5, [3], 20, plain=False).isnan().all()


def test_new_weights_are_taken_by_project() -> None:
    transformer = make()
    memory = Memory(transformer, 2, reach=9, room=30)
    memory.extend(torch.zeros(2, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    allowed, x = torch.ones(2, 1, 1, dtype=torch.bool), torch.randn(2, 1, 64)
    with torch.no_grad():
        for parameter in transformer.parameters():
            nn.init.normal_(parameter, std=0.2)
        memory.project(transformer)
        actual = transformer(x, allowed, memory=memory)
        memory.packed = None
        torch.testing.assert_close(actual, transformer(x, allowed, memory=memory), **CLOSE)


# --------------------------------------------------------------------------------------------------
# Multilayer perceptrons


@pytest.mark.parametrize("rows", [1, 6, 200])
@pytest.mark.parametrize("options", [{}, {"norm": True}, {"dropout": 0.1, "activate_input": True}], ids=str)
def test_networks_equal_the_plain_ones(rows: int, options: dict[str, bool]) -> None:
    """Whatever the number of outputs; and outside, or with gradients, it is the network itself that answers."""
    torch.manual_seed(0)
    network = MLP(24, 33, 3, 5, **options).eval()  # type: ignore[arg-type]
    x = torch.randn(rows, 24)
    with torch.no_grad():
        expected = network(x)
        with packed(network):
            actual = network(x)
            assert network._packed is not None
    torch.testing.assert_close(actual, expected, **CLOSE)
    assert network._packed is None
    with packed(network):
        assert network(x).requires_grad


def test_networks_refuse_what_does_not_fit() -> None:
    network = MLP(8, 16, 1, 2).eval()
    with torch.no_grad(), packed(network):
        with pytest.raises(ValueError, match="expected 8 numbers of float32 a row, but got 9"):
            network(torch.zeros(2, 9))
        torch.testing.assert_close(network(torch.ones(3, 2, 8))[1, 1], network(torch.ones(1, 8))[0], **CLOSE)


def test_networks_on_categories() -> None:
    torch.manual_seed(0)
    network, c = MLP(4 * 8, 32, 2, 6, categories=8), torch.randint(8, (17, 4))
    with torch.no_grad():
        expected = network.eval()(c)
        with packed(network):
            torch.testing.assert_close(network(c), expected, **CLOSE)


def test_networks_are_left_alone_where_c_cannot_be_had() -> None:
    network = MLP(8, 16, 1, 2)
    for unable in (network.train(), MLP(8, 16, 1, 2).double().eval()):
        with packed(unable):
            assert unable._packed is None
    with native.plain_only(), packed(network.eval()):
        assert network._packed is None
