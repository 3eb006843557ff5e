"""Actor and critic: each loss by hand, who learns from what, sampling at every temperature."""

from __future__ import annotations

import math
import re

import pytest
import torch
from small import random_z, small
from torch import Tensor

from twm.config import Config
from twm.nn import latents
from twm.policy.actor_critic import ActorCritic, PolicyLosses, normalised_entropy, sample_action
from twm.types import Dream


def make(actions: int = 2, **options: object) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(small(**options), actions)


def two_steps(logits: Tensor, values: Tensor) -> Dream:
    """One dream of two steps with the numbers of the GAE test: λ = 0.5 gives A = (1, 2), w = (1, 0.5)."""
    return Dream(
        c=torch.zeros(1, 3, 3, dtype=torch.long),
        a=torch.tensor([[0, 1]]),
        r=torch.tensor([[1.0, 2.0]]),
        gamma=torch.tensor([[0.5, 0.25]]),
        ended=torch.zeros(1, 2, dtype=torch.bool),
        h=torch.zeros(1, 3, 16),
        logits=logits,
        values=values,
    )


LOGITS = torch.tensor([[[0.0, 0.0], [math.log(3), 0.0]]])  # π = (½, ½), (¾, ¼)
VALUES = torch.tensor([[[1.0], [1.0], [4.0]]])
H_QUARTER = (0.25 * math.log(4) + 0.75 * math.log(4 / 3)) / math.log(2)  # H(¾, ¼) / ln 2 = 0.8113


def test_losses_by_hand() -> None:
    """Means over the two steps: actor -w ln π(a)·A, critic w ½ (v - R)² with returns R = A + v = (2, 3), hinge w·…"""
    policy = make(policy__gae_lambda=0.5, policy__entropy_threshold=0.9)
    losses, facts = policy.losses(two_steps(LOGITS, VALUES))
    assert losses.actor.item() == pytest.approx(-(1 * math.log(1 / 2) * 1 + 0.5 * math.log(1 / 4) * 2) / 2)
    assert losses.critic.item() == pytest.approx((1 * 0.5 * (1 - 2) ** 2 + 0.5 * 0.5 * (1 - 3) ** 2) / 2)
    assert losses.entropy.item() == pytest.approx((1 * 0 + 0.5 * (0.9 - H_QUARTER)) / 2)
    assert facts.entropy.item() == pytest.approx((1 + H_QUARTER) / 2)
    assert facts.dream_return.item() == pytest.approx(2.5)
    assert facts.value.item() == pytest.approx(2.0)
    assert facts.advantage_scale.item() == 1.0


def test_total_by_hand() -> None:
    policy = make(policy__entropy_coef=0.01)
    assert float(policy.total(PolicyLosses(*map(torch.tensor, (2.0, 5.0, 3.0))))) == pytest.approx(2 + 0.05 + 3)


@pytest.mark.parametrize(
    ("p", "threshold", "expected"),
    [
        ([0.25, 0.25, 0.25, 0.25], 0.1, 0.0),  # largest entropy: nothing to pay
        ([1.0, 0.0, 0.0, 0.0], 0.1, 0.1),  # none left: the whole threshold
        ([0.5, 0.5, 0.0, 0.0], 0.8, 0.3),  # H / ln 4 = ½
        ([0.5, 0.5, 0.0, 0.0], 1.0, 0.5),  # Γ = 1 is the usual entropy bonus, but for a constant
    ],
)
def test_thresholded_entropy(p: list[float], threshold: float, expected: float) -> None:
    """L = max(0, Γ - H(π) / ln m)."""
    policy = make(4, policy__entropy_threshold=threshold)
    logits = torch.tensor(p).clamp(min=1e-30).log().expand(1, 2, 4)
    losses, _ = policy.losses(two_steps(logits, VALUES)._replace(gamma=torch.ones(1, 2)))
    assert losses.entropy.item() == pytest.approx(expected, abs=1e-6)


def test_normalised_entropy() -> None:
    assert normalised_entropy(torch.log(torch.full((3, 7), 1 / 7))).tolist() == pytest.approx([1.0] * 3)
    assert normalised_entropy(torch.zeros(3, 1)).tolist() == [1.0] * 3  # a single action: nothing to choose


def test_advantages_divided_by_their_standard_deviation() -> None:
    """A = (1, 2): standard deviation √½."""
    policy = make(policy__gae_lambda=0.5, policy__advantage_scale="std")
    _, facts = policy.losses(two_steps(LOGITS, VALUES))
    assert facts.advantage_scale.item() == pytest.approx(math.sqrt(0.5), rel=1e-5)


def test_advantages_divided_by_the_range_of_returns() -> None:
    """Returns 0, 100, ..., 2000 have a 5-95 % range of 1800. A hundredth is taken over each time; never below 1."""
    policy = make(policy__advantage_scale="percentile")
    returns = torch.arange(21.0)[None] * 100
    assert policy._range(returns).item() == pytest.approx(1800.0)
    assert policy._advantage_scale(returns).item() == 1.0
    policy.after_update(policy._range(returns))
    assert policy._advantage_scale(returns).item() == pytest.approx(18.0)
    policy.after_update(policy._range(returns))
    assert policy._advantage_scale(returns).item() == pytest.approx(18.0 + 0.01 * (1800 - 18))
    _, facts = policy.losses(two_steps(LOGITS, VALUES))
    assert facts.advantage_scale.item() == pytest.approx(policy.return_range.item())


def test_scale_divides_the_actors_loss_alone() -> None:
    plain, _ = make(policy__gae_lambda=0.5).losses(two_steps(LOGITS, VALUES))
    scaled, facts = make(policy__gae_lambda=0.5, policy__advantage_scale="std").losses(two_steps(LOGITS, VALUES))
    assert scaled.actor.item() == pytest.approx((plain.actor / facts.advantage_scale).item())
    assert scaled.critic.item() == plain.critic.item()


def test_two_hot_critic() -> None:
    """An untrained one is exactly 0 everywhere and uniform: the loss is ln 63 for each weight."""
    policy = make(policy__critic_head="two-hot", policy__gae_lambda=0.5)
    outputs = policy.critic(torch.randn(1, 3, 12))
    assert policy.value(outputs).tolist() == [[0.0, 0.0, 0.0]]
    losses, _ = policy.losses(two_steps(LOGITS, outputs))
    assert losses.critic.item() == pytest.approx((1 + 0.5) / 2 * math.log(63))


def test_slow_critic_follows_and_pulls() -> None:
    """Moved by 0.25 of the way; the critic pays ½ (v - slow)² on top."""
    policy = make(policy__slow_critic=0.25, policy__gae_lambda=0.5)
    assert policy.slow_critic is not None
    with torch.no_grad():
        policy.slow_critic.output.bias.fill_(2.0)
        policy.slow_critic.output.weight.zero_()
    losses, _ = policy.losses(two_steps(LOGITS, VALUES))
    plain, _ = make(policy__gae_lambda=0.5).losses(two_steps(LOGITS, VALUES))
    anchor = (1 * 0.5 * (1 - 2) ** 2 + 0.5 * 0.5 * (1 - 2) ** 2) / 2
    assert losses.critic.item() == pytest.approx(plain.critic.item() + anchor)
    policy.critic.output.bias.data.fill_(6.0)
    policy.after_update()
    assert policy.slow_critic.output.bias.tolist() == [3.0]
    assert not any(p.requires_grad for p in policy.slow_critic.parameters())


def dreamt(policy: ActorCritic) -> Dream:
    z, h = random_z(small(), 5, 4), torch.randn(5, 4, 16)
    x = policy.view(z, h)
    return Dream(
        c=latents.categories(z, 4),
        a=torch.randint(2, (5, 3)),
        r=torch.randn(5, 3),
        gamma=torch.rand(5, 3),
        ended=torch.rand(5, 3) < 0.2,
        h=h,
        logits=policy.actor(x[:, :-1]),
        values=policy.critic(x),
    )


@pytest.mark.parametrize("view", ["z", "zh"])
@pytest.mark.parametrize(("term", "learns"), [("actor", "actor"), ("entropy", "actor"), ("critic", "critic")])
def test_each_term_trains_exactly_its_network(term: str, learns: str, view: str) -> None:
    policy = make(policy__input=view, policy__entropy_threshold=1.0, policy__slow_critic=0.1)
    torch.nn.init.normal_(policy.actor.output.weight)
    losses, _ = policy.losses(dreamt(policy))
    getattr(losses, term).backward()
    for name in ("actor", "critic", "slow_critic"):
        for parameter in getattr(policy, name).parameters():
            reached = parameter.grad is not None and bool(parameter.grad.any())
            assert reached == (name == learns), name


def test_critic_outputs_bootstrap_without_gradient() -> None:
    """The last value enters the returns, but no loss pulls at it."""
    policy = make()
    values = VALUES.clone().requires_grad_()
    losses, _ = policy.losses(two_steps(LOGITS, values))
    policy.total(losses).backward()
    assert values.grad is not None
    assert values.grad[0, :, 0].ne(0).tolist() == [True, True, False]


def test_pretraining_losses() -> None:
    """The critic learns real returns; the actor's loss is 1 - H / ln m, 0 when uniform."""
    policy = make()
    with torch.no_grad():
        policy.actor.output.weight.zero_()
        policy.actor.output.bias.copy_(torch.tensor([math.log(3), 0.0]))
        policy.critic.output.weight.zero_()
        policy.critic.output.bias.fill_(1.0)
    losses = policy.pretraining_losses(torch.zeros(2, 12), torch.tensor([3.0, 0.0]))
    assert losses.actor.item() == 0.0
    assert losses.entropy.item() == pytest.approx(1 - H_QUARTER)
    assert losses.critic.item() == pytest.approx((0.5 * 4 + 0.5 * 1) / 2)


def test_view() -> None:
    z, h = torch.rand(2, 12), torch.rand(2, 16)
    assert make().view(z, None) is z
    assert torch.equal(make(policy__input="zh").view(z, h), torch.cat([z, h], -1))
    with pytest.raises(ValueError, match=re.escape("a policy on [z, h] needs the hidden state h")):
        make(policy__input="zh").view(z, None)


def test_the_policy_starts_almost_uniform() -> None:
    policy = ActorCritic(Config(), 6)
    p = torch.softmax(policy.actor(random_z(Config(), 20)), -1).detach()
    assert float((p - 1 / 6).abs().max()) < 0.02
    assert not policy.actor.output.bias.any()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, math.inf])
def test_action_frequencies(temperature: float) -> None:
    """softmax(logits / temperature), divided once; infinity is uniform. Chi-squared, 3 degrees: 0.999 below 16.27."""
    torch.manual_seed(0)
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5])
    actions = sample_action(logits.expand(20_000, 4), temperature)
    expected = 20_000 * torch.softmax(logits / temperature, -1)
    counts = torch.bincount(actions, minlength=4)
    assert float(((counts - expected) ** 2 / expected).sum()) < 16.27


def test_temperature_zero_is_greedy() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.9], [5.0, 4.0, 5.1]])
    assert sample_action(logits, 0.0).tolist() == [1, 2]
