"""How much training the budget buys, and when (docs: an update costs N·ℓ + M·H samples)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from twm.config import Config, samples_per_update


@dataclass(frozen=True)
class Schedule:
    """Whole-number targets that depend on counters only, so that a resumed run meets the same ones."""

    pretrain_observation: int  # updates of the observation model before the main loop
    pretrain_dynamics: int
    pretrain_policy: int
    prefill: int
    interactions: int
    updates: int  # in the main loop

    def updates_due(self, interactions: int) -> int:
        """Updates that should have been made after so many interactions: the budget spread evenly."""
        return self.updates * max(0, interactions - self.prefill) // max(1, self.interactions - self.prefill)


def make_schedule(config: Config) -> Schedule:
    train, world_model = config.train, config.world_model
    sequences = world_model.batch_size * world_model.sequence_length  # samples of a pretraining update
    rest = 1 - train.pretrain_observation - train.pretrain_dynamics

    def share(part: float) -> int:
        return int(part * train.pretrain_samples / sequences + 1e-6)

    return Schedule(
        pretrain_observation=share(train.pretrain_observation),
        pretrain_dynamics=share(train.pretrain_dynamics),
        pretrain_policy=share(rest),
        prefill=train.prefill,
        interactions=train.interactions,
        updates=int((train.samples - train.pretrain_samples) / samples_per_update(config) + 1e-6),
    )


def with_interactions(config: Config, interactions: int) -> Config:
    """More (or fewer) interactions at the same updates per interaction: the budget grows along."""
    train = config.train
    ratio = (train.samples - train.pretrain_samples) / max(1, train.interactions - train.prefill)
    samples = train.pretrain_samples + ratio * (interactions - train.prefill)
    return replace(config, train=replace(train, interactions=interactions, samples=samples))
