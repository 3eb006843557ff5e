"""The policy: an actor and a critic on latent states, trained on dreams (paper, section 2.2).

    L_actor  = -E w_t [ ln π(a_t | z_t) A_t ] + η E w_t max(0, Γ - H(π) / ln m)
    L_critic =  E w_t ½ (v(z_t) - (A_t + v_t))²

w_t is the cumulative product of predicted discounts, A_t the advantage by GAE, m the number of actions.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from twm.config import Config
from twm.nn import latents
from twm.nn.mlp import MLP, initialise_orthogonally
from twm.nn.optimiser import Optimiser
from twm.nn.two_hot import TwoHot
from twm.policy.returns import dream_weights, gae
from twm.types import Dream


class PolicyLosses(NamedTuple):
    actor: Tensor
    entropy: Tensor  # the hinge, unweighted
    critic: Tensor


class PolicyFacts(NamedTuple):
    """What a person watches while the policy learns."""

    entropy: Tensor  # H(π) / ln m
    value: Tensor
    dream_return: Tensor
    advantage_scale: Tensor
    return_range: Tensor  # from the 5 % to the 95 % quantile of the returns, where advantages are scaled by it


class ActorCritic(nn.Module):
    def __init__(self, config: Config, num_actions: int) -> None:
        super().__init__()
        world_model, c = config.world_model, config.policy
        self.config = c
        self.K = world_model.latent_categories
        inputs = world_model.latent_variables * self.K
        if c.input == "zh":
            inputs += world_model.width
        categories = self.K if c.input == "z" else 0
        self.two_hot = TwoHot() if c.critic_head == "two-hot" else None
        self.actor = MLP(inputs, c.units, c.layers, num_actions, norm=c.norm, categories=categories)
        values = self.two_hot.bins if self.two_hot else 1
        self.critic = MLP(inputs, c.units, c.layers, values, norm=c.norm, categories=categories)
        initialise_orthogonally(self.actor, output_gain=0.01)
        initialise_orthogonally(self.critic, output_gain=1.0 if self.two_hot is None else 0.0)
        self.slow_critic = copy.deepcopy(self.critic).requires_grad_(False) if c.slow_critic else None
        self.register_buffer("return_range", torch.zeros(()))
        self.return_range: Tensor

    def make_optimisers(self) -> dict[str, Optimiser]:
        c = self.config
        return {
            "actor": Optimiser(self.actor, c.actor_lr, c.weight_decay, c.grad_clip),
            "critic": Optimiser(self.critic, c.critic_lr, c.weight_decay, c.grad_clip),
        }

    def view(
        self, z: Float[Tensor, "*batch Z"] | Int[Tensor, "*batch V"], h: Float[Tensor, "*batch D"] | None
    ) -> Tensor:
        """What actor and critic see: z, or [z, h] with h of the step before."""
        if self.config.input == "z":
            return z
        if h is None:
            raise ValueError("a policy on [z, h] needs the hidden state h, but got none")
        return torch.cat([z if z.is_floating_point() else latents.one_hot(z, self.K, h.dtype), h], -1)

    def value(self, output: Float[Tensor, "*batch outputs"]) -> Float[Tensor, "*batch"]:
        """Values from the critic's outputs."""
        return output.squeeze(-1) if self.two_hot is None else self.two_hot.mean(output)

    # ----------------------------------------------------------------------------------------------
    # Learning

    def losses(self, dream: Dream) -> tuple[PolicyLosses, PolicyFacts]:
        """From a dream, which carries the graphs of actor and critic."""
        c = self.config
        with torch.no_grad():
            values = self.value(dream.values.detach())  # (M, H+1)
            advantages = gae(dream.r, dream.gamma, values, dream.ended, c.gae_lambda)
            returns = advantages + values[:, :-1]
            w = dream_weights(dream.gamma, dream.ended)
            scale = self._advantage_scale(advantages)
        log_pi = F.log_softmax(dream.logits, -1)  # (M, H, A)
        chosen = log_pi.gather(-1, dream.a.unsqueeze(-1)).squeeze(-1)
        entropy = normalised_entropy(log_pi)
        hinge = (w * F.relu(c.entropy_threshold - entropy)).mean()
        losses = PolicyLosses(
            actor=-(w * chosen * advantages / scale).mean(),
            entropy=hinge,
            critic=(w * self._critic_loss(dream, returns)).mean(),
        )
        facts = PolicyFacts(entropy.detach().mean(), values.mean(), returns.mean(), scale, self._range(returns))
        return losses, facts

    def total(self, losses: PolicyLosses) -> Tensor:
        return losses.actor + self.config.entropy_coef * losses.entropy + losses.critic

    def after_update(self, return_range: Tensor | None = None) -> None:
        """Let the slow critic and the smoothed range of returns follow."""
        with torch.no_grad():
            if return_range is not None:
                self.return_range.lerp_(return_range, 0.01)
            if self.slow_critic is not None:
                for slow, fast in zip(self.slow_critic.parameters(), self.critic.parameters(), strict=True):
                    slow.lerp_(fast, self.config.slow_critic)

    def _critic_loss(self, dream: Dream, returns: Tensor) -> Tensor:
        output = dream.values[:, :-1]
        loss = self._distance(output, returns)
        if self.slow_critic is not None:
            with torch.no_grad():
                x = self.view(dream.c[:, :-1], dream.h[:, :-1])
                anchor = self.value(self.slow_critic(x))
            loss = loss + self._distance(output, anchor)
        return loss

    def _distance(self, output: Tensor, target: Tensor) -> Tensor:
        if self.two_hot is not None:
            return self.two_hot.loss(output, target)
        return 0.5 * (output.squeeze(-1) - target).square()

    def _advantage_scale(self, advantages: Tensor) -> Tensor:
        """1, the advantages' standard deviation, or the 5-95 % range of returns, at least 1 (of the updates before)."""
        if self.config.advantage_scale == "std":
            return advantages.std() + 1e-6
        if self.config.advantage_scale == "percentile":
            return self.return_range.clamp(min=1.0)
        return torch.ones_like(self.return_range)

    def _range(self, returns: Tensor) -> Tensor:
        if self.config.advantage_scale != "percentile":
            return torch.zeros_like(self.return_range)
        quantiles = torch.tensor([0.05, 0.95], device=returns.device, dtype=returns.dtype)
        low, high = torch.quantile(returns.flatten(), quantiles)
        return high - low

    def pretraining_losses(self, x: Float[Tensor, "batch inputs"], returns: Float[Tensor, " batch"]) -> PolicyLosses:
        """Before the first dream: the critic learns the returns of the random policy, the actor to stay uniform."""
        log_pi = F.log_softmax(self.actor(x), -1)
        critic = self._distance(self.critic(x), returns).mean()
        return PolicyLosses(torch.zeros_like(critic), 1 - normalised_entropy(log_pi).mean(), critic)


def normalised_entropy(log_pi: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch"]:
    """H(π) / ln m, in [0, 1]; with a single action there is nothing to choose, and it is 1."""
    m = log_pi.shape[-1]
    if m == 1:
        return torch.ones_like(log_pi[..., 0])
    return -(log_pi.exp() * log_pi).sum(-1) / math.log(m)


def sample_action(
    logits: Float[Tensor, "*batch A"], temperature: float = 1.0, u: Float[Tensor, "*batch"] | None = None
) -> Int[Tensor, "*batch"]:
    """a ~ softmax(logits / temperature) by the uniform number ``u`` (None: a fresh one).

    Temperature 0 takes the most likely action, infinity draws uniformly.
    """
    if temperature == 0:
        return logits.argmax(-1)
    with torch.no_grad():
        cdf = torch.softmax(logits.float() / temperature, -1).cumsum(-1)
        u = torch.rand(cdf.shape[:-1], device=cdf.device) if u is None else u
        return (cdf <= u.unsqueeze(-1) * cdf[..., -1:]).sum(-1).clamp_(max=logits.shape[-1] - 1)
