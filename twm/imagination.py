"""World model + policy → dreams (paper, Algorithm 1, right).

From M states of the training batch the policy acts for H steps in the world that the dynamics model
predicts. Where the product of predicted discounts falls below a threshold the dream counts as ended, and
its row goes on from a fresh state: all rows stay busy and every shape stays the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from twm.policy.actor_critic import ActorCritic, sample_action
from twm.types import Dream, Starts
from twm.world_model.world_model import WorldModel


def imagine(world_model: WorldModel, policy: ActorCritic, pool: Starts, M: int, H: int) -> Dream:
    """M dreams of H steps from states of ``pool``, all different if there are as many.

    The world model runs without gradients. Actor and critic run with theirs, so that the update can go
    straight to the backward pass.
    """
    dynamics, threshold = world_model.dynamics, policy.config.end_threshold
    device, states = pool.z.device, pool.z.shape[0]
    # Everything random, drawn beforehand: where rows start, where they go on after an end, actions, latents.
    first = torch.randperm(states, device=device)[:M] if states >= M else torch.randint(states, (M,), device=device)
    fresh = torch.randint(states, (M, H), device=device)
    u_action = torch.rand((M, H), device=device)
    u_latent = torch.rand((M, H, world_model.config.latent_variables), device=device)
    starts = Starts(*(x[first] for x in pool))
    history = dynamics.begin(M, H + 1)
    nothing = torch.zeros(M, dtype=torch.bool, device=device)
    h = dynamics.step(history, starts.context_z, starts.context_a, starts.context_r, nothing)
    h = h * starts.has_context[:, None]
    z, r, restart = starts.z, dynamics.squash(starts.context_r), ~starts.has_context
    alive = torch.ones(M, device=device)  # product of discounts since the row (re)started
    steps: list[tuple[Tensor, ...]] = []
    for t in range(H):
        x = policy.view(z, h)
        logits, value = policy.actor(x), policy.critic(x)
        a = sample_action(logits.detach(), u=u_action[:, t])
        h_next = dynamics.step(history, z, a, r, restart)
        with torch.no_grad():
            prediction = dynamics.predict(h_next, u=u_latent[:, t])
            alive = alive * prediction.gamma_hat
            restart = alive < threshold
            steps.append((z, h, a, prediction.r_hat, prediction.gamma_hat, restart, logits, value))
            z = torch.where(restart[:, None], pool.z[fresh[:, t]], prediction.z)
            h = h_next.masked_fill(restart[:, None], 0.0)
            r = prediction.r_hat
            alive = alive.masked_fill(restart, 1.0)
    zs, hs, actions, rewards, gammas, ended, all_logits, values = (torch.stack(x, 1) for x in zip(*steps))
    with torch.no_grad():  # it only bootstraps the last return
        last = policy.critic(policy.view(z, h))
    return Dream(
        z=torch.cat([zs, z[:, None]], 1),
        a=actions,
        r=rewards,
        gamma=gammas,
        ended=ended,
        h=torch.cat([hs, h[:, None]], 1),
        logits=all_logits,
        values=torch.cat([values, last[:, None]], 1),
    )
