"""Can they learn at all? The observation model a few pictures by heart, the dynamics model a small world."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from small import image_spec, small, vector_spec
from torch import Tensor

from twm.imagination import imagine
from twm.nn import latents
from twm.train.learner import Learner
from twm.types import Batch, Dream

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


# --------------------------------------------------------------------------------------------------
# Pictures


def pictures(n: int) -> Tensor:
    """A ball somewhere and a paddle at the bottom, 16 x 16, two frames in which the ball falls by two."""
    generator = torch.Generator().manual_seed(0)
    o = torch.zeros(n, 2, 16, 16, dtype=torch.uint8)
    for i in range(n):
        x, y, paddle = (int(torch.randint(high, (1,), generator=generator)) for high in (14, 10, 12))
        for frame in range(2):
            o[i, frame, y + 2 * frame : y + 2 * frame + 3, x : x + 3] = 255
            o[i, frame, 15, paddle : paddle + 4] = 180
    return o


@pytest.mark.parametrize(("encoder", "lr", "updates"), [("patch", 2e-3, 1500), ("conv", 4e-3, 500)])
def test_the_observation_model_reconstructs(encoder: str, lr: float, updates: int) -> None:
    """Twenty pictures by heart: the decoder's loss falls at least 50 times."""
    torch.manual_seed(0)
    config = small(
        world_model__encoder=encoder,
        world_model__channels=16,
        world_model__encoder_units=64,
        world_model__latent_variables=16,
        world_model__latent_categories=8,
        world_model__entropy_coef=0.0,
        world_model__observation_lr=lr,
    )
    learner = Learner(config, image_spec(), CPU)
    o = pictures(20).view(4, 5, 2, 16, 16)
    o = torch.cat([o[:, :1], o, o[:, :1]], 1)  # (4, 7, ...): what stands at both ends carries no loss
    nothing = torch.zeros(4, 6)
    batch = Batch(o, nothing.long(), nothing, nothing.bool(), nothing.bool())
    losses = [learner.pretrain_observation(batch)["loss/decoder"].item() for _ in range(updates)]
    assert losses[0] > 50 * max(losses[-10:])


# --------------------------------------------------------------------------------------------------
# A small world

PLACES, TANK, STATION = 7, 7, 3
LEFT, STAY, RIGHT = 0, 1, 2


class Ferry:
    """A ferry on a ring of 7 places. It moves by the action *before* (stay at first), burns one unit of fuel a step,
    is refilled at the station, which pays 1, and an empty tank ends the episode, which costs a half.

    z shows place and fuel, not the action before: that the model must remember.
    """

    def __init__(self, place: Tensor, fuel: Tensor, before: Tensor) -> None:
        self.place, self.fuel, self.before = place, fuel, before

    @classmethod
    def anywhere(cls, rows: int) -> Ferry:
        return cls(torch.randint(PLACES, (rows,)), torch.randint(TANK, (rows,)), torch.full((rows,), STAY))

    def z(self) -> Tensor:
        return latents.one_hot(torch.stack([self.place, self.fuel], -1), 7)

    def step(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Reward and whether the episode ended; the state after an end means nothing."""
        self.place = (self.place + self.before - 1) % PLACES
        arrived = self.place == STATION
        ended = ~arrived & (self.fuel == 0)
        self.fuel = torch.where(arrived, TANK - 1, (self.fuel - 1).clamp(min=0))
        self.before = a
        return arrived.float() - 0.5 * ended, ended

    def restart(self, rows: Tensor, other: Ferry) -> None:
        for name in ("place", "fuel", "before"):
            setattr(self, name, torch.where(rows, getattr(other, name), getattr(self, name)))


def voyages(rows: int, steps: int) -> Batch:
    """Random voyages; observations are the latent states themselves."""
    ferry, o, a, r, terminated = Ferry.anywhere(rows), [], [], [], []
    for _ in range(steps):
        o.append(ferry.z())
        a.append(torch.randint(3, (rows,)))
        reward, ended = ferry.step(a[-1])
        r.append(reward)
        terminated.append(ended)
        ferry.restart(ended, Ferry.anywhere(rows))
    o.append(ferry.z())
    ends = torch.stack(terminated, 1)
    return Batch(torch.stack(o, 1), torch.stack(a, 1), torch.stack(r, 1), ends, torch.zeros_like(ends))


class Verdict(NamedTuple):
    latents: float  # share of dreamt states that are the real ones
    reward: float  # error that 90 % of the dreamt rewards stay below
    ends: float  # share of steps where dream and world agree on whether the episode ended
    ended: int  # how many dreams ended


def judge(dream: Dream, before: Tensor) -> Verdict:
    """A real ferry sails along with the same actions from the same start, uncorrected until an episode ends."""
    ferry = Ferry(*dream.c[:, 0].unbind(-1), before)
    right, errors, agree = [], [], []
    for t in range(dream.a.shape[1]):
        reward, ended = ferry.step(dream.a[:, t])
        ferry.restart(ended, Ferry(*dream.c[:, t + 1].unbind(-1), torch.full_like(before, STAY)))
        right.append((latents.one_hot(dream.c[:, t + 1], 7) == ferry.z()).all(-1)[~ended])
        errors.append((dream.r[:, t] - reward).abs())
        agree.append(dream.ended[:, t] == ended)
    return Verdict(
        latents=torch.cat(right).float().mean().item(),
        reward=torch.cat(errors).quantile(0.9).item(),
        ends=torch.cat(agree).float().mean().item(),
        ended=int(dream.ended.sum()),
    )


def test_the_dynamics_model_predicts_a_small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """15 imagined steps from states it has not seen: states, rewards and ends as in the real world."""
    torch.manual_seed(0)
    config = small(
        world_model__batch_size=32,
        world_model__sequence_length=8,
        world_model__latent_variables=2,
        world_model__latent_categories=7,
        world_model__width=32,
        world_model__feedforward=64,
        world_model__norm="pre",
        world_model__latent_units=64,
        world_model__reward_units=64,
        world_model__discount_units=64,
        world_model__dynamics_lr=6e-3,
        world_model__reward_coef=30.0,
        world_model__discount_coef=10.0,
    )
    learner = Learner(config, vector_spec(14), CPU)
    world_model = learner.world_model
    monkeypatch.setattr(world_model.observation, "encode", lambda o: (o * 40).unflatten(-1, (2, 7)))
    data = voyages(1024, 9)
    for update in range(900):
        for group in learner.optimisers["dynamics"].adam.param_groups:  # down to nothing, so that it settles
            group["lr"] = 6e-3 * (1 - update / 900)
        rows = torch.randint(1024, (32,))
        learner.pretrain_dynamics(Batch(*(x[rows] for x in data)))
    _, pool = world_model.losses(voyages(200, 9))
    torch.manual_seed(1)
    first = torch.randperm(pool.z.shape[0])[:300]
    torch.manual_seed(1)
    dream = imagine(world_model, learner.policy, pool, M=300, H=15)
    assert torch.equal(latents.one_hot(dream.c[:, 0], 7), pool.z[first])
    verdict = judge(dream, torch.where(pool.has_context[first], pool.context_a[first], STAY))
    assert verdict.latents >= 0.95
    assert verdict.reward <= 1e-2
    assert verdict.ends >= 0.99
    assert verdict.ended > 300
