"""Dreams: the same numbers as one pass over the whole sequence, ends and fresh starts, and what is fed back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small import SMALL, small, vector_spec
from torch import Tensor, nn

from twm.config import Config
from twm.imagination import imagine
from twm.nn import latents
from twm.policy.actor_critic import ActorCritic
from twm.policy.returns import dream_weights
from twm.types import Dream, Prediction, Starts
from twm.world_model.world_model import WorldModel

POOL = 20


def make(config: Config, dtype: torch.dtype = torch.float32) -> tuple[WorldModel, ActorCritic]:
    """Untrained, but with discounts that vary enough for some dreams to end."""
    torch.manual_seed(0)
    world_model = WorldModel(config.world_model, vector_spec(), config.policy.discount)
    nn.init.normal_(world_model.dynamics.discount_head.output.weight, std=4.0)
    nn.init.constant_(world_model.dynamics.discount_head.output.bias, 1.0)
    policy = ActorCritic(config, 3)
    nn.init.normal_(policy.actor.output.weight)
    return world_model.to(dtype).eval(), policy.to(dtype).eval()


def make_pool(dtype: torch.dtype = torch.float32) -> Starts:
    """States that all differ, so that a dream's first state tells where it came from."""
    generator = torch.Generator().manual_seed(1)
    codes = torch.randperm(64, generator=generator)[:POOL]
    z = latents.one_hot(torch.stack([codes // 16, codes // 4 % 4, codes % 4], -1), 4, dtype)
    return Starts(
        z=z,
        context_z=z[torch.randperm(POOL, generator=generator)],
        context_a=torch.randint(3, (POOL,), generator=generator),
        context_r=torch.randn(POOL, generator=generator, dtype=torch.float64).to(dtype),
        has_context=torch.rand(POOL, generator=generator) < 0.7,
    )


def origin(c: Tensor, pool: Starts) -> Tensor:
    """(M,) the entry of the pool that each state is."""
    same = (latents.one_hot(c, 4)[:, None] == pool.z[None]).all(-1)
    assert bool((same.sum(-1) == 1).all())
    return same.long().argmax(-1)


def whole_sequence(world_model: WorldModel, dream: Dream, pool: Starts) -> tuple[Tensor, Prediction, Starts]:
    """The dream once more, with its context in front, in one pass of the transformer: h after each step."""
    dynamics = world_model.dynamics
    starts = Starts(*(x[origin(dream.c[:, 0], pool)] for x in pool))
    z = torch.cat([starts.context_z[:, None], latents.one_hot(dream.c[:, :-1], 4, pool.z.dtype)], 1)
    a = torch.cat([starts.context_a[:, None], dream.a], 1)
    r = torch.cat([dynamics.squash(starts.context_r)[:, None], dream.r], 1)
    restarts = torch.cat([~starts.has_context[:, None], dream.ended], 1).long()
    h = dynamics(z, a, r, restarts.cumsum(1) - restarts)
    prediction = dynamics.predict(h[:, 1:])
    reward = dynamics.reward_mean(dynamics.reward_output(h[:, 1:], dream.c[:, 1:]))  # to the state that was drawn
    unknown = dream.ended & (dynamics.embed_next is not None)  # a fresh start has taken the place of what was drawn
    return h, prediction._replace(r_hat=torch.where(unknown, dream.r, reward)), starts


OPTIONS: list[dict[str, Any]] = [
    {},
    {"world_model__rewards_in_input": False},
    {"world_model__tokens": "one"},
    {"world_model__tokens": "one", "world_model__rewards_in_input": False},
    {"world_model__norm": "pre", "world_model__embedding": "silu"},
    {"world_model__reward_transform": "tanh"},
    {"world_model__reward_input": "next", "policy__end_threshold": 0.9},
    {"world_model__memory": False, "world_model__sequence_length": 40},  # all of the dream within the window
    {"policy__input": "zh"},
    {"policy__input": "zh", "world_model__tokens": "one"},
    {"policy__input": "zh", "world_model__memory": False, "world_model__sequence_length": 40},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("H", [4, 30])  # within the memory of 3 steps and its room, and far beyond
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())) or "paper")
def test_dreams_equal_the_whole_sequence(options: dict[str, Any], H: int, dtype: torch.dtype) -> None:
    """Every step, row and pattern of ends: states, rewards, discounts, hidden states, policy and critic."""
    config = small(**{"world_model__sequence_length": 3, "policy__end_threshold": 0.5, **options})
    (world_model, policy), pool = make(config, dtype), make_pool(dtype)
    torch.manual_seed(3)
    with torch.no_grad():
        dream = imagine(world_model, policy, pool, M=16, H=H)
        h, prediction, starts = whole_sequence(world_model, dream, pool)
    close = {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 1e-10}
    assert dream.ended.any()
    assert not dream.ended.all()
    torch.testing.assert_close(dream.r, prediction.r_hat, **close)
    torch.testing.assert_close(dream.gamma, prediction.gamma_hat, **close)
    seen = torch.cat([~starts.has_context[:, None], dream.ended], 1)  # where a row (re)started, h is 0
    torch.testing.assert_close(dream.h, h.masked_fill(seen[..., None], 0.0), **close)
    x = policy.view(latents.one_hot(dream.c, 4, dtype), dream.h)
    torch.testing.assert_close(dream.logits, policy.actor(x[:, :-1]), **close)
    torch.testing.assert_close(dream.values, policy.critic(x), **close)


def test_next_states_come_from_the_predictor(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the most likely category taken instead of a draw, z_{t+1} is the predictor's, or fresh after an end."""
    real = latents.draw
    monkeypatch.setattr(latents, "draw", lambda logits, temperature=1.0, u=None: real(logits, 0.0))
    (world_model, policy), pool = make(small(policy__end_threshold=0.5)), make_pool()
    torch.manual_seed(3)
    dream = imagine(world_model, policy, pool, M=16, H=12)
    _, prediction, _ = whole_sequence(world_model, dream, pool)
    expected = real(prediction.z_logits, 0.0)
    went_on = ~dream.ended
    assert torch.equal(dream.c[:, 1:][went_on], expected[went_on])
    fresh = dream.c[:, 1:][dream.ended]
    assert len(fresh) > 5
    assert len(set(origin(fresh, pool).tolist())) > 3


def test_next_states_are_drawn() -> None:
    """Two dreams from the same start differ: the world is stochastic (paper, figure on stochasticity)."""
    (world_model, policy), pool = make(small()), make_pool()
    one = Starts(*(x[:1].expand(200, *x.shape[1:]) for x in pool))
    dream = imagine(world_model, policy, one, M=200, H=1)
    _, prediction, _ = whole_sequence(world_model, dream, Starts(*(x[:1] for x in pool)))
    p = torch.softmax(prediction.z_logits, -1).flatten(2)[:, 0]
    # 200 draws of each variable: the mean of (drawn - expected) stays within 4.5 standard deviations.
    deviation = (latents.one_hot(dream.c[:, 1], 4) - p).sum(0) / (p * (1 - p)).sum(0).sqrt()
    assert deviation.abs().max() < 4.5


def test_a_dream_ends_where_the_discounts_say_so() -> None:
    """Ended exactly where the product since the last (re)start falls below the threshold; weights follow it."""
    (world_model, policy), pool = make(small(policy__end_threshold=0.5)), make_pool()
    torch.manual_seed(3)
    dream = imagine(world_model, policy, pool, M=16, H=12)
    weights = dream_weights(dream.gamma, dream.ended)
    for m in range(16):
        alive = 1.0
        for t in range(12):
            assert float(weights[m, t]) == pytest.approx(alive, rel=1e-5)
            alive *= float(dream.gamma[m, t])
            assert bool(dream.ended[m, t]) == (alive < 0.5)
            alive = 1.0 if alive < 0.5 else alive


def test_threshold_zero_lets_dreams_run() -> None:
    world_model, policy = make(small(policy__end_threshold=0.0))
    nn.init.constant_(world_model.dynamics.discount_head.output.bias, -50.0)
    assert not imagine(world_model, policy, make_pool(), M=5, H=6).ended.any()


@pytest.mark.parametrize("transform", ["none", "tanh"])
def test_predicted_rewards_are_fed_back(transform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step t + 1 gets r̂_t as it was predicted; the first gets the context's reward as the model sees it."""
    (world_model, policy), pool = make(small(world_model__reward_transform=transform)), make_pool()
    dynamics, fed = world_model.dynamics, []
    predict, step = dynamics.predict, dynamics.step

    def predict_known(h: Tensor, u: Tensor) -> Prediction:
        return predict(h, u=u)._replace(r_hat=torch.full((5,), 100.0 + len(fed)), gamma_hat=torch.ones(5))

    def step_seen(history: Any, z: Tensor, a: Tensor, r: Tensor, restart: Tensor) -> Tensor:
        fed.append(r)
        return step(history, z, a, r, restart)

    monkeypatch.setattr(dynamics, "predict", predict_known)
    monkeypatch.setattr(dynamics, "step", step_seen)
    dream = imagine(world_model, policy, pool, M=5, H=4)
    context_r = pool.context_r[origin(dream.c[:, 0], pool)]
    torch.testing.assert_close(fed[1], context_r.tanh() if transform == "tanh" else context_r)
    assert [float(r[0]) for r in fed[2:]] == [102.0, 103.0, 104.0]  # r̂ of the steps before
    assert dream.r[0].tolist() == [102.0, 103.0, 104.0, 105.0]


def test_gradients_reach_the_policy_and_not_the_world() -> None:
    world_model, policy = make(small(policy__input="zh"))
    dream = imagine(world_model, policy, make_pool(), M=16, H=5)
    losses, _ = policy.losses(dream)
    policy.total(losses).backward()
    assert all(p.grad is not None and p.grad.any() for p in policy.parameters())
    assert all(p.grad is None for p in world_model.parameters())


def test_the_policy_runs_over_all_steps_at_once() -> None:
    """The actor once for each step to act, then both once for all steps (and the critic once more to bootstrap); the
    losses run neither."""
    world_model, policy = make(SMALL)
    calls = {"actor": 0, "critic": 0}
    for name in calls:
        getattr(policy, name).register_forward_hook(lambda *_, name=name: calls.update({name: calls[name] + 1}))
    policy.losses(imagine(world_model, policy, make_pool(), M=8, H=5))
    assert calls == {"actor": 6, "critic": 2}


def test_dreams_start_from_different_states() -> None:
    world_model, policy = make(SMALL)
    pool = make_pool()
    dream = imagine(world_model, policy, pool, M=POOL, H=1)
    assert sorted(origin(dream.c[:, 0], pool).tolist()) == list(range(POOL))


def test_more_dreams_than_states_begin_twice_somewhere() -> None:
    world_model, policy = make(SMALL)
    pool = make_pool()
    dream = imagine(world_model, policy, pool, M=POOL + 1, H=1)
    assert set(origin(dream.c[:, 0], pool).tolist()) <= set(range(POOL))


def test_shapes() -> None:
    world_model, policy = make(SMALL)
    dream = imagine(world_model, policy, make_pool(), M=7, H=5)
    shapes = {name: tuple(x.shape) for name, x in dream._asdict().items()}
    assert shapes == {
        "c": (7, 6, 3),
        "a": (7, 5),
        "r": (7, 5),
        "gamma": (7, 5),
        "ended": (7, 5),
        "h": (7, 6, 16),
        "logits": (7, 5, 3),
        "values": (7, 6, 1),
    }
