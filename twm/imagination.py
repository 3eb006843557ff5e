"""World model + policy → dreams (paper, Algorithm 1, right).

From M states of the training batch the policy acts for H steps in the world that the dynamics model
predicts. Where the product of predicted discounts falls below a threshold the dream counts as ended, and
its row goes on from a fresh state: all rows stay busy and every shape stays the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from twm.nn import latents
from twm.nn.mlp import packed
from twm.policy.actor_critic import ActorCritic, sample_action
from twm.types import Dream, Starts
from twm.world_model.world_model import WorldModel


def imagine(world_model: WorldModel, policy: ActorCritic, pool: Starts, M: int, H: int) -> Dream:
    """M dreams of H steps from states of ``pool``, all different if there are as many.

    Nothing here takes gradients but actor and critic over all steps at once, when the dream is over, so that the
    update can go straight to the backward pass.
    """
    with torch.no_grad(), packed(policy.actor, *world_model.dynamics.heads()):
        c, a, r, gamma, ended, h = _dream(world_model, policy, pool, M, H)
        last = policy.critic(policy.view(c[:, -1], h[:, -1]))  # it only bootstraps the last return
    x = policy.view(c[:, :-1], h[:, :-1])
    values = torch.cat([policy.critic(x), last[:, None]], 1)
    return Dream(c=c, a=a, r=r, gamma=gamma, ended=ended, h=h, logits=policy.actor(x), values=values)


def _dream(world_model: WorldModel, policy: ActorCritic, pool: Starts, M: int, H: int) -> tuple[Tensor, ...]:
    """Step by step: c (M, H+1, V), a, r, gamma, ended (M, H), h (M, H+1, D)."""
    dynamics, threshold, K = world_model.dynamics, policy.config.end_threshold, world_model.config.latent_categories
    device, states = pool.z.device, pool.z.shape[0]
    # Everything random, drawn beforehand: where rows start, where they go on after an end, actions, latents.
    first = torch.randperm(states, device=device)[:M] if states >= M else torch.randint(states, (M,), device=device)
    fresh = torch.randint(states, (M, H), device=device)
    u_action = torch.rand((M, H), device=device)
    u_latent = torch.rand((M, H, world_model.config.latent_variables), device=device)
    pool_c = latents.categories(pool.z, K)
    starts = Starts(*(x[first] for x in pool))
    history = dynamics.begin(M, H + 1)
    nothing = torch.zeros(M, dtype=torch.bool, device=device)
    context_c = latents.categories(starts.context_z, K)
    h = dynamics.step(history, context_c, starts.context_a, starts.context_r, nothing)
    h = h * starts.has_context[:, None]
    c, r, restart = pool_c[first], dynamics.squash(starts.context_r), ~starts.has_context
    alive = torch.ones(M, device=device)  # product of discounts since the row (re)started
    steps: list[tuple[Tensor, ...]] = []
    for t in range(H):
        a = sample_action(policy.actor(policy.view(c, h)), u=u_action[:, t])
        h_next = dynamics.step(history, c, a, r, restart)
        prediction = dynamics.predict(h_next, u=u_latent[:, t])
        alive = alive * prediction.gamma_hat
        restart = alive < threshold
        steps.append((a, prediction.r_hat, prediction.gamma_hat, restart, c, h))
        c = torch.where(restart[:, None], pool_c[fresh[:, t]], prediction.c)
        h = h_next.masked_fill(restart[:, None], 0.0)
        r = prediction.r_hat
        alive = alive.masked_fill(restart, 1.0)
    *outcomes, cs, hs = zip(*steps)
    actions, rewards, gammas, ended = (torch.stack(x, 1) for x in outcomes)
    return torch.stack([*cs, c], 1), actions, rewards, gammas, ended, torch.stack([*hs, h], 1)
