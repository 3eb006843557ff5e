"""Transformer-XL against a slow reading of its formula: one query, one head, one key at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from twm.nn.transformer_xl import Layer, Memory, TransformerXL, shift, sinusoids

Numbers = npt.NDArray[np.float64]


def make(norm: str = "post", layers: int = 2, width: int = 8, heads: int = 2) -> TransformerXL:
    """Random in every parameter, also those that start at 0 or 1, so that none can hide."""
    torch.manual_seed(0)
    transformer = TransformerXL(width, layers, heads, 12, dropout=0.0, norm=norm).double()
    for parameter in transformer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return transformer


def random_mask(B: int, T: int) -> Tensor:
    """Causal, with holes; each token may at least look at itself."""
    allowed = (torch.rand(B, T, T) < 0.6).tril()
    return allowed | torch.eye(T, dtype=torch.bool)


# --------------------------------------------------------------------------------------------------
# The slow reading


def numbers(x: Any) -> Numbers:
    return np.asarray(x.detach().double().numpy())


def layer_norm(x: Numbers, norm: nn.LayerNorm) -> Numbers:
    centred = x - x.mean()
    return centred / math.sqrt((centred**2).mean() + norm.eps) * numbers(norm.weight) + numbers(norm.bias)


def position(distance: int, width: int) -> Numbers:
    angles = [distance / 10_000 ** (2 * k / width) for k in range(width // 2)]
    return np.array([math.sin(x) for x in angles] + [math.cos(x) for x in angles])


def slow_attention(layer: Layer, x: list[Numbers], u: Tensor, v: Tensor, allowed: Tensor) -> list[Numbers]:
    """s_ij = [(q_i + u)·k_j + (q_i + v)·W_r R_{i-j}] / √D, softmax over the allowed j, head by head."""
    D, heads = len(x[0]), layer.heads
    d = D // heads
    W_q, W_kv, W_r = numbers(layer.query.weight), numbers(layer.key_value.weight), numbers(layer.position.weight)
    outputs = []
    for i in range(len(x)):
        mixed = np.zeros(D)
        for head in range(heads):
            part = slice(head * d, (head + 1) * d)
            q = (W_q @ x[i])[part]
            scores, values = [], []
            for j in range(len(x)):
                if not allowed[i, j]:
                    continue
                k, r = (W_kv[:D] @ x[j])[part], (W_r @ position(i - j, D))[part]
                score = (q + numbers(u)[head, 0]) @ k + (q + numbers(v)[head, 0]) @ r
                scores.append(score / math.sqrt(D))
                values.append((W_kv[D:] @ x[j])[part])
            weights = [math.exp(s) for s in scores]
            mixed[part] = sum(w * value for w, value in zip(weights, values)) / sum(weights)
        outputs.append(numbers(layer.output.weight) @ mixed)
    return outputs


def slow_feedforward(layer: Layer, x: Numbers) -> Numbers:
    hidden = numbers(layer.expand.weight) @ x + numbers(layer.expand.bias)
    hidden = hidden / (1 + np.exp(-hidden))
    return np.asarray(numbers(layer.contract.weight) @ hidden + numbers(layer.contract.bias))


def slow_transformer(transformer: TransformerXL, sequence: Tensor, allowed: Tensor) -> Numbers:
    x = list(numbers(sequence))
    for layer in transformer._layers():
        if layer.pre_norm:
            normed = [layer_norm(y, layer.norm_attention) for y in x]
            x = [y + m for y, m in zip(x, slow_attention(layer, normed, transformer.u, transformer.v, allowed))]
            x = [y + slow_feedforward(layer, layer_norm(y, layer.norm_feedforward)) for y in x]
        else:
            mixed = slow_attention(layer, x, transformer.u, transformer.v, allowed)
            x = [layer_norm(y + m, layer.norm_attention) for y, m in zip(x, mixed)]
            x = [layer_norm(y + slow_feedforward(layer, y), layer.norm_feedforward) for y in x]
    if isinstance(transformer.final_norm, nn.LayerNorm):
        x = [layer_norm(y, transformer.final_norm) for y in x]
    return np.stack(x)


# --------------------------------------------------------------------------------------------------


def test_sinusoids_by_hand() -> None:
    """Distances 2, 1, 0; frequencies 1 and 10000^(-2/4) = 0.01; sines first."""
    expected = [
        [math.sin(2), math.sin(0.02), math.cos(2), math.cos(0.02)],
        [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)],
        [0.0, 0.0, 1.0, 1.0],
    ]
    actual = sinusoids(3, 4, torch.device("cpu"), torch.float64)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("S", "spacing", "keys"), [(1, 1, 4), (4, 1, 4), (3, 1, 7), (3, 3, 8), (2, 3, 11), (4, 2, 8)])
def test_shift_reads_each_score_at_its_distance(S: int, spacing: int, keys: int) -> None:
    """The input holds in column c of query s the number 100·s + distance, with distance = keys - 1 - c."""
    by_distance = 100 * torch.arange(S)[:, None] + torch.arange(keys - 1, -1, -1)[None]
    by_key = shift(by_distance.float(), spacing)
    for s in range(S):
        stands_at = keys - 1 - (S - 1 - s) * spacing
        for j in range(stands_at + 1):
            assert by_key[s, j] == 100 * s + (stands_at - j)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_matches_the_slow_reading(norm: str) -> None:
    transformer = make(norm)
    x, allowed = torch.randn(3, 7, 8, dtype=torch.float64), random_mask(3, 7)
    actual = transformer(x, allowed)
    for row in range(3):
        expected = slow_transformer(transformer, x[row], allowed[row])
        np.testing.assert_allclose(numbers(actual[row]), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(("T", "spacing"), [(8, 3), (6, 2), (7, 3)])
def test_spaced_outputs_are_those_of_all(norm: str, T: int, spacing: int) -> None:
    """Asking for every third output changes none of them; the last token is always among them."""
    transformer = make(norm)
    x, allowed = torch.randn(2, T, 8, dtype=torch.float64), random_mask(2, T)
    every = transformer(x, allowed)
    some = transformer(x, allowed, spacing=spacing)
    torch.testing.assert_close(some, every[:, (T - 1) % spacing :: spacing], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("chunks", [[9], [1] * 9, [2, 3, 1, 3], [4, 5]])
def test_memory_gives_the_same_as_the_whole_sequence(norm: str, chunks: list[int]) -> None:
    transformer = make(norm)
    x, allowed = torch.randn(3, 9, 8, dtype=torch.float64), random_mask(3, 9)
    whole = transformer(x, allowed)
    memory = Memory(transformer, rows=3, reach=9, room=12)
    seen = 0
    with torch.no_grad():
        for new in chunks:
            start = memory.extend(torch.zeros(3, new, dtype=torch.long), torch.zeros(new, dtype=torch.long))
            assert start == seen
            mask = allowed[:, seen : seen + new, : seen + new]
            part = transformer(x[:, seen : seen + new], mask, memory=memory, start=start)
            torch.testing.assert_close(part, whole[:, seen : seen + new], rtol=1e-12, atol=1e-12)
            seen += new


def test_full_memory_moves_what_is_within_reach_to_the_front() -> None:
    """Room for 5, reach 3: the sixth token moves the last three to the front and stands at place 3."""
    memory = Memory(make(), rows=2, reach=3, room=5)
    for step in range(5):
        assert memory.extend(torch.tensor([[step], [10 + step]]), torch.tensor([step])) == step
        memory.k[:, :, :, step] = step
    assert memory.extend(torch.tensor([[5], [15]]), torch.tensor([5])) == 3
    assert memory.step[:4].tolist() == [2, 3, 4, 5]
    assert memory.episode[:, :4].tolist() == [[2, 3, 4, 5], [12, 13, 14, 15]]
    assert memory.k[0, 0, 0, :3, 0].tolist() == [2, 3, 4]
    assert memory.length == 4


def test_attention_weights_are_recorded_and_respect_the_mask() -> None:
    transformer = make(layers=3)
    x, allowed = torch.randn(2, 6, 8, dtype=torch.float64), random_mask(2, 6)
    weights: list[Tensor] = []
    transformer(x, allowed, spacing=2, weights=weights)
    assert [w.shape for w in weights] == [(2, 2, 6, 6), (2, 2, 6, 6), (2, 2, 3, 6)]
    for w, rows in zip(weights, [allowed, allowed, allowed[:, 1::2]]):
        torch.testing.assert_close(w.sum(-1), torch.ones_like(w[..., 0]))
        assert torch.equal(w > 0, rows[:, None].expand_as(w))


def test_biases_are_shared_by_all_layers() -> None:
    """u and v once, not per layer: 2·D parameters beside the layers."""
    transformer = TransformerXL(8, 3, 2, 12, 0.0, "post")
    own = {name for name, _ in transformer.named_parameters() if not name.startswith("layers.")}
    assert own == {"u", "v"}
    assert transformer.u.numel() == transformer.v.numel() == 8


def test_dropout_acts_in_training_only() -> None:
    transformer = TransformerXL(8, 2, 2, 12, 0.5, "post")
    x, allowed = torch.randn(1, 5, 8), torch.ones(1, 5, 5, dtype=torch.bool).tril()
    assert not torch.equal(transformer(x, allowed), transformer(x, allowed))
    transformer.eval()
    assert torch.equal(transformer(x, allowed), transformer(x, allowed))
