"""The dynamics model: token layout, masks by brute force, and the same numbers step by step as all at once."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from small import random_z, small
from torch import Tensor

from twm.config import Config
from twm.world_model.dynamics import DynamicsModel, _previous_rewards

ACTIONS = 3
KINDS = [("three", True), ("three", False), ("one", True), ("one", False)]  # tokens, rewards in the input


def make(config: Config, dtype: torch.dtype = torch.float32) -> DynamicsModel:
    torch.manual_seed(0)
    dynamics = DynamicsModel(config.world_model, ACTIONS).to(dtype).eval()
    for name, parameter in dynamics.named_parameters():  # biases and norms too, so that none can hide
        if parameter.ndim == 1 or name.endswith((".u", ".v")):
            torch.nn.init.normal_(parameter, std=0.3)
    return dynamics


def inputs(config: Config, B: int, T: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(ACTIONS, (B, T), generator=generator)
    r = torch.randn((B, T), generator=generator, dtype=torch.float64).to(dtype)
    return random_z(config, B, T, dtype=dtype), a, r


# --------------------------------------------------------------------------------------------------
# Tokens


def tokens_of(dynamics: DynamicsModel, *args: Tensor) -> tuple[Tensor, int]:
    """What the transformer gets, and how far apart its outputs are wanted."""
    seen: list[tuple[Tensor, int]] = []
    hook = dynamics.transformer.register_forward_pre_hook(
        lambda _, positional, named: seen.append((positional[0], named["spacing"])), with_kwargs=True
    )
    dynamics(*args)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("embedding", ["linear", "silu"])
def test_three_tokens_a_step_without_the_last_reward(embedding: str) -> None:
    """z0 a0 r0 z1 a1 r1 z2 a2: 3ℓ - 1 tokens (paper, section 2.1), outputs wanted at the actions."""
    config = small(world_model__embedding=embedding)
    dynamics = make(config)
    z, a, r = inputs(config, 2, 3)
    tokens, spacing = tokens_of(dynamics, z, a, r, torch.zeros_like(a))
    act = torch.nn.SiLU() if embedding == "silu" else torch.nn.Identity()
    expected = []
    for t in range(3):
        expected += [act(dynamics.embed_z(z[:, t])), dynamics.embed_a(a[:, t]), act(dynamics.embed_r(r[:, t, None]))]
    assert tokens.shape[1] == 3 * 3 - 1
    torch.testing.assert_close(tokens, torch.stack(expected[:-1], 1))
    assert list(range(tokens.shape[1]))[(tokens.shape[1] - 1) % spacing :: spacing] == [1, 4, 7]


def test_two_tokens_without_rewards() -> None:
    config = small(world_model__rewards_in_input=False)
    dynamics = make(config)
    z, a, r = inputs(config, 2, 3)
    tokens, spacing = tokens_of(dynamics, z, a, r, torch.zeros_like(a))
    torch.testing.assert_close(tokens[:, 0::2], dynamics.embed_z(z))
    torch.testing.assert_close(tokens[:, 1::2], dynamics.embed_a(a))
    assert spacing == 2


def test_one_token_is_the_sum_with_the_reward_before() -> None:
    """Step t adds up z_t, a_t and r_{t-1}; the first step of an episode has seen no reward."""
    config = small(world_model__tokens="one")
    dynamics = make(config)
    z, a, r = inputs(config, 1, 3)
    tokens, spacing = tokens_of(dynamics, z, a, r, torch.tensor([[0, 0, 1]]))
    before = torch.stack([torch.zeros(1), r[:, 0], torch.zeros(1)], 1)
    expected = dynamics.embed_z(z) + dynamics.embed_a(a) + dynamics.embed_r(before.unsqueeze(-1))
    torch.testing.assert_close(tokens, expected)
    assert spacing == 1


def test_previous_rewards_by_hand() -> None:
    r = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert _previous_rewards(r, torch.tensor([[0, 0, 1, 1]])).tolist() == [[0, 1, 0, 3]]


def test_large_rewards_enter_the_model_through_symlog() -> None:
    config = small(world_model__reward_head="two-hot")
    dynamics = make(config)
    z, a, r = inputs(config, 1, 2)
    tokens, _ = tokens_of(dynamics, z, a, torch.full_like(r, -(math.e**3 - 1)), torch.zeros_like(a))
    torch.testing.assert_close(tokens[0, 2], dynamics.embed_r(torch.tensor([-3.0])), rtol=1e-5, atol=1e-5)


# --------------------------------------------------------------------------------------------------
# Masks


def test_masks_by_brute_force() -> None:
    """Token i sees token j if j is not later, of the same episode, and at most ℓ steps back."""
    dynamics = make(small(world_model__sequence_length=2))
    step = torch.arange(6).repeat_interleave(3)[:-1]
    episode = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 2]]).repeat_interleave(3, -1)[
        :, :-1
    ]
    allowed = dynamics.allowed(episode, step, episode, step)
    for b, i, j in itertools.product(range(3), range(17), range(17)):
        expected = j <= i and episode[b, i] == episode[b, j] and step[i] - step[j] <= 2
        assert allowed[b, i, j] == expected, (b, i, j)


def depends(h: Tensor, x: Tensor) -> Tensor:
    """(T, T): whether h_t depends on the inputs of step s."""
    rows = []
    for t in range(h.shape[1]):
        (gradient,) = torch.autograd.grad(h[0, t].square().sum(), x, retain_graph=True)
        rows.append(gradient[0].reshape(x.shape[1], -1).abs().sum(-1) > 1e-12)
    return torch.stack(rows)


@pytest.mark.parametrize(("tokens", "rewards"), KINDS)
def test_what_a_hidden_state_can_see(tokens: str, rewards: bool) -> None:
    """h_t = f(z_{t-ℓ:t}, a_{t-ℓ:t}, r_{t-ℓ:t-1}) within its episode: one layer, ℓ = 2, an end after step 3."""
    config = small(
        world_model__tokens=tokens,
        world_model__rewards_in_input=rewards,
        world_model__sequence_length=2,
        world_model__layers=1,
    )
    dynamics = make(config, torch.float64)
    z, a, r = inputs(config, 1, 7, torch.float64)
    z.requires_grad_()
    r.requires_grad_()
    episode = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    h = dynamics(z, a, r, episode)
    if not rewards:
        h = h + 0 * r.sum()  # so that a gradient exists at all
    # With one token, r_s rides on the token of step s + 1, so it is within reach one step longer.
    far = 3 if tokens == "one" else 2
    on_z, on_r = depends(h, z), depends(h, r)
    for t, s in itertools.product(range(7), range(7)):
        same = bool(episode[0, t] == episode[0, s])
        assert on_z[t, s] == (same and 0 <= t - s <= 2)
        assert on_r[t, s] == (rewards and same and 1 <= t - s <= far)


def test_every_action_within_reach_matters() -> None:
    config = small(world_model__sequence_length=2, world_model__layers=1)
    dynamics = make(config, torch.float64)
    z, a, r = inputs(config, 1, 6, torch.float64)
    h = dynamics(z, a, r, torch.zeros_like(a))
    for s in range(6):
        other = a.clone()
        other[0, s] = (a[0, s] + 1) % ACTIONS
        changed = (dynamics(z, other, r, torch.zeros_like(a)) - h).abs().sum(-1)[0] > 1e-12
        assert changed.tolist() == [0 <= t - s <= 2 for t in range(6)]


# --------------------------------------------------------------------------------------------------
# Step by step


def whole(dynamics: DynamicsModel, z: Tensor, a: Tensor, r: Tensor, restart: Tensor) -> Tensor:
    return dynamics(z, a, r, restart.long().cumsum(1))


def step_by_step(
    dynamics: DynamicsModel, z: Tensor, a: Tensor, r: Tensor, restart: Tensor, steps: int | None
) -> Tensor:
    history = dynamics.begin(z.shape[0], steps)
    rewards = torch.cat([torch.full_like(r[:, :1], 7.0), r[:, :-1]], 1)  # the first must not matter
    hs = [dynamics.step(history, z[:, t], a[:, t], rewards[:, t], restart[:, t]) for t in range(z.shape[1])]
    return torch.stack(hs, 1)


def close(dtype: torch.dtype) -> dict[str, Any]:
    return {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 1e-10}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(("tokens", "rewards"), KINDS)
def test_cached_steps_equal_the_whole_sequence_for_every_pattern_of_ends(
    tokens: str, rewards: bool, norm: str, dtype: torch.dtype
) -> None:
    """All 2⁶ patterns of restarts over six steps, one to a row."""
    config = small(world_model__tokens=tokens, world_model__rewards_in_input=rewards, world_model__norm=norm)
    dynamics = make(config, dtype)
    restart = torch.tensor(list(itertools.product([False, True], repeat=6)))
    z, a, r = inputs(config, 64, 6, dtype)
    expected = whole(dynamics, z, a, r, restart)
    actual = step_by_step(dynamics, z, a, r, restart, steps=6)
    torch.testing.assert_close(actual, expected, **close(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(("tokens", "rewards"), KINDS)
def test_cached_steps_equal_the_whole_sequence_far_beyond_the_memory(
    tokens: str, rewards: bool, length: int, dtype: torch.dtype
) -> None:
    """40 steps with ℓ = 1, 2, 5: the memory fills up and moves several times. Rows end never to always."""
    config = small(
        world_model__tokens=tokens, world_model__rewards_in_input=rewards, world_model__sequence_length=length
    )
    dynamics = make(config, dtype)
    z, a, r = inputs(config, 6, 40, dtype)
    ends = torch.tensor([0.0, 0.05, 0.1, 0.3, 0.6, 1.0])
    restart = torch.rand(6, 40, generator=torch.Generator().manual_seed(2)) < ends[:, None]
    expected = whole(dynamics, z, a, r, restart)
    for steps in (None, 40):
        torch.testing.assert_close(step_by_step(dynamics, z, a, r, restart, steps), expected, **close(dtype))


@pytest.mark.parametrize(("tokens", "rewards"), KINDS)
def test_vanilla_steps_recompute_the_window(tokens: str, rewards: bool) -> None:
    """Without memory, h_t is what the window t-ℓ..t alone gives: no information older than that gets through."""
    config = small(
        world_model__tokens=tokens,
        world_model__rewards_in_input=rewards,
        world_model__memory=False,
        world_model__sequence_length=3,
    )
    dynamics = make(config, torch.float64)
    z, a, r = inputs(config, 6, 12, torch.float64)
    restart = torch.rand(6, 12, generator=torch.Generator().manual_seed(2)) < 0.2
    actual = step_by_step(dynamics, z, a, r, restart, None)
    for t in range(12):
        first = max(0, t - 3)
        window = [x[:, first : t + 1] for x in (z, a, r, restart.long().cumsum(1))]
        torch.testing.assert_close(actual[:, t], dynamics(*window)[:, -1], rtol=0, atol=1e-10)


def test_memory_and_vanilla_agree_within_the_window_and_differ_beyond() -> None:
    """Up to step ℓ both have seen the same. Later the memory's keys carry what came before the window."""
    options = {"world_model__sequence_length": 3}
    with_memory, vanilla = make(small(**options)), make(small(**options, world_model__memory=False))
    z, a, r = inputs(small(**options), 2, 8)
    restart = torch.zeros(2, 8, dtype=torch.bool)
    cached = step_by_step(with_memory, z, a, r, restart, None)
    recomputed = step_by_step(vanilla, z, a, r, restart, None)
    torch.testing.assert_close(cached[:, :4], recomputed[:, :4], rtol=0, atol=1e-5)
    assert (cached[:, 5:] - recomputed[:, 5:]).abs().max() > 1e-3


def test_a_restarted_row_is_as_good_as_new() -> None:
    dynamics = make(small())
    z, a, r = inputs(small(), 2, 6)
    restart = torch.zeros(2, 6, dtype=torch.bool)
    restart[:, 3] = True
    late = step_by_step(dynamics, z, a, r, restart, None)[:, 3:]
    fresh = step_by_step(dynamics, z[:, 3:], a[:, 3:], r[:, 3:], torch.zeros(2, 3, dtype=torch.bool), None)
    torch.testing.assert_close(late, fresh, rtol=0, atol=1e-5)


@pytest.mark.parametrize("memory", [True, False])
def test_attention_of_the_last_step_is_kept_where_asked_for(memory: bool) -> None:
    config = small(world_model__memory=memory)
    dynamics = make(config)
    z, a, r = inputs(config, 2, 3)
    history = dynamics.begin(2, attention=True)
    for t in range(3):
        dynamics.step(history, z[:, t], a[:, t], r[:, t], torch.zeros(2, dtype=torch.bool))
    assert history.attention is not None
    assert len(history.attention) == 2
    last = history.attention[-1][:, :, -1]  # (2 rows, 2 heads, keys): of a_2, over z0 a0 r0 z1 a1 r1 z2 a2
    assert last.shape == (2, 2, 8)
    torch.testing.assert_close(last.sum(-1), torch.ones(2, 2))
    assert dynamics.begin(2).attention is None


def test_steps_keep_no_graph() -> None:
    dynamics = make(small())
    z, a, r = inputs(small(), 2, 1)
    history = dynamics.begin(2)
    h = dynamics.step(history, z[:, 0], a[:, 0], r[:, 0], torch.zeros(2, dtype=torch.bool))
    assert not h.requires_grad
    assert history.memory is not None
    assert not any(p.requires_grad for p in history.memory.positions)


# --------------------------------------------------------------------------------------------------
# Predictors


def test_predict_by_hand() -> None:
    """Heads see SiLU(h); ẑ as logits (V, K), r̂ the mean itself, γ̂ through the sigmoid."""
    dynamics = make(small(world_model__head_layers=0))
    h = torch.randn(2, 16)
    prediction = dynamics.predict(h)
    active = h * torch.sigmoid(h)
    latent, reward, discount = dynamics.latent_head.output, dynamics.reward_head.output, dynamics.discount_head.output
    torch.testing.assert_close(prediction.z_logits.flatten(1), active @ latent.weight.T + latent.bias)
    torch.testing.assert_close(prediction.r_hat, (active @ reward.weight.T + reward.bias)[:, 0])
    torch.testing.assert_close(prediction.gamma_hat, torch.sigmoid(active @ discount.weight.T + discount.bias)[:, 0])


def test_discount_head_starts_at_the_bias_of_the_released_code() -> None:
    torch.manual_seed(0)
    assert DynamicsModel(small().world_model, ACTIONS).discount_head.output.bias.item() == pytest.approx(0.99)


def test_an_untrained_two_hot_head_promises_no_reward() -> None:
    dynamics = DynamicsModel(small(world_model__reward_head="two-hot").world_model, ACTIONS)
    assert dynamics.predict(torch.randn(5, 16)).r_hat.tolist() == [0.0] * 5


def test_unimix_keeps_every_category_alive() -> None:
    """At least share / K = 0.2 / 4 each."""
    dynamics = make(small(world_model__unimix=0.2))
    torch.nn.init.constant_(dynamics.latent_head.output.bias, 0.0)
    dynamics.latent_head.output.bias.data[0] = 100.0
    p = torch.softmax(dynamics.predict(torch.randn(3, 16)).z_logits, -1)
    assert p[:, 0, 1:].tolist() == [pytest.approx([0.05] * 3)] * 3


def test_tanh_squashes_rewards() -> None:
    r = torch.tensor([-5.0, 0.0, 0.5])
    assert make(small(world_model__reward_transform="tanh")).squash(r).tolist() == pytest.approx(r.tanh().tolist())
    assert make(small()).squash(r) is r
