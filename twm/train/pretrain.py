"""Pretraining on the prefilled experience (paper, "Pretraining for Better Initialization").

Three parts one after the other, each with its share of the sample budget: the observation model, the dynamics
model on its latents, and the policy: the critic on returns that really happened, the actor towards high entropy.
Sequences are drawn uniformly and their visits not counted: the few prefilled entries are drawn so often here that
the main loop would hardly look at them again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from twm.train.partners import Facts
from twm.train.run import Run

SAVE_EVERY = 500  # updates


def pretrain(run: Run) -> None:
    learner, schedule = run.learner, run.schedule
    _part(run, "observation", schedule.pretrain_observation, lambda b, _: learner.pretrain_observation(b))
    _part(run, "dynamics", schedule.pretrain_dynamics, lambda b, _: learner.pretrain_dynamics(b))
    squash = learner.world_model.dynamics.squash
    rewards = squash(torch.from_numpy(run.replay.rewards.copy())).numpy()  # the scale on which dreams pay
    returns = real_returns(rewards, run.replay.ended, run.config.policy.discount)
    length = run.config.world_model.sequence_length

    def policy(batch: object, starts: npt.NDArray[np.int64]) -> Facts:
        index = starts[:, None] + np.arange(length)
        target = torch.from_numpy(returns[index]).to(learner.device)
        return learner.pretrain_policy(batch, target)  # type: ignore[arg-type]

    _part(run, "policy", schedule.pretrain_policy, policy)


def _part(run: Run, name: str, total: int, update: Callable[..., Facts]) -> None:
    if run.pretrained[name] >= total or run.interactions > run.schedule.prefill:
        return
    c = run.config.world_model
    run.display.phase(f"pretraining {name}", total, unit="updates", start=run.pretrained[name])
    while run.pretrained[name] < total:
        sequences, starts = run.replay.sample(c.batch_size, c.sequence_length, math.inf, run.rng, count=False)
        run.pretrained[name] += 1
        done = run.pretrained[name]
        run.averages.add(f"pretraining update {done} of the {name} model", update(run.learner.batch(sequences), starts))
        run.display.advance(1, **run.averages.glance())
        if done % run.config.train.log_every == 0 or done == total:
            run.log(**{f"pretrain/{name}": done})
        if done % SAVE_EVERY == 0 or done == total:
            run.save()
        run.stop_if_requested()


def real_returns(
    rewards: npt.NDArray[np.float32], ended: npt.NDArray[np.bool_], discount: float
) -> npt.NDArray[np.float32]:
    """R_t = r_t + γ R_{t+1}, ending with each episode; what lies behind the last entry counts as nothing."""
    returns = np.zeros(len(rewards), np.float32)
    running = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        running = float(rewards[t]) + (0.0 if ended[t] else discount * running)
        returns[t] = running
    return returns
