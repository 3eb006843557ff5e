"""Attention rollout: by hand, against a plain reading, rows that sum to one, nothing from the future."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import image_spec, random_z, small

from twm.agent import build
from twm.analysis import attention
from twm.config import ConfigError


def causal_weights(B: int, heads: int, N: int, seed: int) -> torch.Tensor:
    scores = torch.randn(B, heads, N, N, generator=torch.Generator().manual_seed(seed))
    mask = torch.ones(N, N, dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)


def tril(B: int, N: int) -> torch.Tensor:
    return torch.ones(B, N, N, dtype=torch.bool).tril()


def test_two_tokens_two_layers_by_hand() -> None:
    """A_1 = [[1, 0], [½, ½]] gives R_1 = [[1, 0], [¼, ¾]]; A_2 = [[1, 0], [1, 0]] gives the second row
    ½ (1, 0) + ½ (¼, ¾) = (⅝, ⅜)."""
    first = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
    second = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])
    rows = attention.rollout([first, second])
    assert rows[0].tolist() == [[0.25, 0.75], [0.625, 0.375]]


def test_heads_are_averaged() -> None:
    one = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    other = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    rows = attention.rollout([torch.stack([one, other])[None]])
    assert rows[0].tolist() == [[0.25, 0.75]]


def test_rollout_equals_the_product_of_whole_matrices() -> None:
    weights = [causal_weights(3, 2, 7, seed) for seed in range(3)]
    rows = attention.rollout(weights)
    R = np.eye(7)[None]
    for layer, each in enumerate(weights):
        R = 0.5 * (each.double().mean(1).numpy() + np.eye(7)) @ R
        assert np.triu(R[0], 1).max() == 0  # nothing from the future
        np.testing.assert_allclose(R.sum(-1), 1)
        np.testing.assert_allclose(rows[:, layer].numpy(), R[:, -1])


def test_a_last_layer_with_the_queries_of_some_tokens_only() -> None:
    """The last layer computes only every third token's output, the newest among them."""
    weights = [causal_weights(2, 2, 8, seed) for seed in range(3)]
    sparse = [*weights[:2], weights[2][:, :, 1::3]]
    torch.testing.assert_close(attention.rollout(sparse), attention.rollout(weights))
    with pytest.raises(ConfigError, match="only the last layer may lack rows, but layer 1 has 3 of 8"):
        attention.rollout([weights[0][:, :, 1::3], weights[1]])


@pytest.mark.parametrize("layers", [1, 2, 6])
def test_indifferent_attention_is_flat_over_the_past(layers: int) -> None:
    """Plain rollout piles up on the first tokens, because under the mask flow only goes back; the adapted one does
    not."""
    N = 9
    even = tril(1, N).double() / torch.arange(1, N + 1)[:, None]
    weights = [even[:, None]] * layers
    adapted = attention.adapted_rollout(weights, tril(1, N))[0]
    plain = attention.rollout(weights)[0]
    for row, before in zip(adapted, plain, strict=True):
        torch.testing.assert_close(row[:-1], ((1 - before[-1]) / (N - 1)).expand(N - 1))
        assert row[-1] == before[-1]  # what a token keeps of itself is left alone
    if layers > 1:
        assert plain[-1, 0] > 1.2 * plain[-1, -2]


def test_adapted_rows_sum_to_one_and_respect_the_mask() -> None:
    allowed = tril(2, 8)
    allowed[1, :, :3] = False  # the second sequence begins an episode at token 3
    allowed[1, :3, :3] = tril(1, 3)[0]
    weights = []
    for seed in range(3):
        scores = torch.randn(2, 2, 8, 8, generator=torch.Generator().manual_seed(seed))
        weights.append(torch.softmax(scores.masked_fill(~allowed[:, None], -torch.inf), -1))
    rows = attention.adapted_rollout(weights, allowed)
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 3, dtype=torch.float64))
    assert (rows >= 0).all()
    assert (rows[1, :, :3] == 0).all()
    assert (rows[0] > 0).all()


def test_a_token_that_all_attend_to_stands_out() -> None:
    N = 6
    looks = torch.zeros(1, 1, N, N)
    looks[..., 0, 0] = 1
    looks[:, :, 1, 1] = 1
    looks[:, :, 2:, 2] = 1  # from token 2 on, everyone looks at it alone
    rows = attention.adapted_rollout([looks, looks], tril(1, N))
    assert rows[0, :, :-1].argmax(-1).tolist() == [2, 2]
    assert rows[0, 0].tolist() == [0, 0, 0.5, 0, 0, 0.5]


@pytest.mark.parametrize(
    ("options", "per_step", "tokens"),
    [
        ({}, 3, 11),
        ({"world_model__tokens": "one"}, 1, 4),
        ({"world_model__rewards_in_input": False}, 2, 8),
        ({"world_model__norm": "pre", "world_model__layers": 3}, 3, 11),
        ({"world_model__layers": 1}, 3, 11),
    ],
)
def test_layouts(options: dict[str, object], per_step: int, tokens: int) -> None:
    """4 steps: z a r z a r z a r z a; merged; without rewards. One map per layer, rows summing to one."""
    config = small(**options)
    dynamics = build(config, image_spec()).world_model.dynamics.eval()
    z, a, r = random_z(config, 2, 4), torch.zeros(2, 4, dtype=torch.long), torch.ones(2, 4)
    rows = attention.attention_rows(dynamics, z, a, r)
    assert dynamics.tokens_per_step == per_step
    assert rows.shape == (2, config.world_model.layers, tokens)
    torch.testing.assert_close(rows.sum(-1), torch.ones_like(rows[..., 0]))
    map_ = attention.by_modality(rows[0], per_step)
    assert map_.shape == (config.world_model.layers, 4)
    total = sum(np.nansum(part, axis=1) for part in map_.parts.values())
    np.testing.assert_allclose(total, 1)


def test_the_last_reward_is_not_looked_at() -> None:
    config = small()
    dynamics = build(config, image_spec()).world_model.dynamics.eval()
    z, a, r = random_z(config, 1, 4), torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4)
    changed = r.clone()
    changed[0, -1] = 5
    before, after = (attention.attention_rows(dynamics, z, a, x) for x in (r, changed))
    torch.testing.assert_close(before, after)
    changed[0, -2] = 5
    assert not torch.allclose(before, attention.attention_rows(dynamics, z, a, changed))


def test_plain_rollout_on_request() -> None:
    config = small()
    dynamics = build(config, image_spec()).world_model.dynamics.eval()
    z, a, r = random_z(config, 1, 4), torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4)
    plain = attention.attention_rows(dynamics, z, a, r, adapted=False)
    adapted = attention.attention_rows(dynamics, z, a, r)
    torch.testing.assert_close(plain[..., -1], adapted[..., -1])
    assert not torch.allclose(plain, adapted)


def test_columns_by_modality() -> None:
    """z0 a0 r0 z1 a1 → states (z0, z1), actions (a0, a1), rewards (r0, not yet)."""
    map_ = attention.by_modality([[1, 2, 3, 4, 5]], 3, rewards=[0.5, 9.0])
    assert map_.parts["states"].tolist() == [[1, 4]]
    assert map_.parts["actions"].tolist() == [[2, 5]]
    np.testing.assert_array_equal(map_.parts["rewards"], [[3, np.nan]])
    assert map_.rewards is not None
    np.testing.assert_array_equal(map_.rewards, [0.5, np.nan])


def test_table_numbers_steps_back_from_the_current_one() -> None:
    rows = attention.map_table({"real": attention.by_modality([[1, 2, 3, 4, 5]], 3)})
    assert len(rows) == 5  # the reward that has not come has no row
    assert rows[0] == {"Sequence": "real", "Layer": 1, "Tokens": "states", "Step": -1, "Weight": 1.0}
    assert [row["Step"] for row in rows] == [-1, 0, -1, 0, -1]


def test_figure_has_a_panel_per_modality_and_sequence() -> None:
    map_ = attention.by_modality(np.full((2, 11), 1 / 11), 3, rewards=[0.0, 1.0, 0.01, 0.0])
    figure = attention.attention_figure({"imagined": map_, "real": map_})
    panels = [ax for ax in figure.axes if ax.images]
    assert len(panels) == 6
    written = [text.get_text() for ax in panels for text in ax.texts]
    assert written == ["+1", "+1"]  # notable rewards only, above the reward panels
    merged = attention.by_modality(np.full((2, 4), 0.25), 1, rewards=[0.0, 1.0, 0.0, 0.0])
    (text,) = [t for ax in attention.attention_figure({"real": merged}).axes for t in ax.texts]
    assert text.get_position()[0] == 1
    assert "no sequences" in attention.attention_figure({}).texts[0].get_text()
