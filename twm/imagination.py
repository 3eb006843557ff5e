"""World model + policy → dreams (paper, Algorithm 1, right).

From M states of the training batch the policy acts for H steps in the world that the dynamics model
predicts. Where the product of predicted discounts falls below a threshold the dream counts as ended, and
its row goes on from a fresh state: all rows stay busy and every shape stays the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from twm.nn.workers import in_blocks
from twm.policy.actor_critic import ActorCritic, sample_action
from twm.types import Dream, Starts
from twm.world_model.world_model import WorldModel

SMALLEST_BLOCK = 128  # dreams; with fewer, threads wait for the interpreter more than they gain (measured)


class Draws(NamedTuple):
    """Everything random in M dreams of H steps, drawn beforehand: what a row dreams depends on no other row."""

    first: Tensor  # (M,) where it starts in the pool
    fresh: Tensor  # (M, H) where it goes on if it ends after this step
    action: Tensor  # (M, H) uniform numbers
    latent: Tensor  # (M, H, V)


def imagine(world_model: WorldModel, policy: ActorCritic, pool: Starts, M: int, H: int) -> Dream:
    """M dreams of H steps from states of ``pool``, all different if there are as many.

    The world model runs without gradients. Actor and critic run with theirs, so that the update can go
    straight to the backward pass. On a CPU each thread dreams a block of rows.
    """
    device, states = pool.z.device, pool.z.shape[0]
    draws = Draws(
        first=torch.randperm(states, device=device)[:M] if states >= M else torch.randint(states, (M,), device=device),
        fresh=torch.randint(states, (M, H), device=device),
        action=torch.rand((M, H), device=device),
        latent=torch.rand((M, H, world_model.config.latent_variables), device=device),
    )
    # Other devices are parallel by themselves, and threads do not inherit autocast.
    split = device.type == "cpu" and not torch.is_autocast_enabled("cpu")

    def dream(rows: slice) -> Dream:
        return _dream(world_model, policy, pool, Draws(*(x[rows] for x in draws)))

    blocks = in_blocks(M, SMALLEST_BLOCK if split else M, dream)
    names = [name for name in Dream._fields if name != "graphs"]
    whole = {name: torch.cat([getattr(block, name) for block in blocks]).detach() for name in names}
    whole["logits"].requires_grad_()
    whole["values"].requires_grad_()
    return Dream(**whole, graphs=tuple((block.logits, block.values[:, :-1]) for block in blocks))


def _dream(world_model: WorldModel, policy: ActorCritic, pool: Starts, draws: Draws) -> Dream:
    """One block of rows."""
    dynamics, threshold = world_model.dynamics, policy.config.end_threshold
    M, H = draws.action.shape
    device = pool.z.device
    starts = Starts(*(x[draws.first] for x in pool))
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
        a = sample_action(logits.detach(), u=draws.action[:, t])
        h_next = dynamics.step(history, z, a, r, restart)
        with torch.no_grad():
            prediction = dynamics.predict(h_next, u=draws.latent[:, t])
            alive = alive * prediction.gamma_hat
            restart = alive < threshold
            steps.append((z, h, a, prediction.r_hat, prediction.gamma_hat, restart, logits, value))
            z = torch.where(restart[:, None], pool.z[draws.fresh[:, t]], prediction.z)
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
