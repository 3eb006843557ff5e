"""Models small enough to check by hand, and batches of made-up experience for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from twm.config import Config, EnvConfig, PolicyConfig, TrainConfig, WorldModelConfig, with_options
from twm.types import Batch, EnvSpec

SMALL = Config(
    env="Catch",
    env_options=EnvConfig(size=16, stack=2),
    world_model=WorldModelConfig(
        batch_size=4,
        sequence_length=5,
        encoder="patch",
        channels=4,
        encoder_units=16,
        encoder_layers=1,
        latent_variables=3,
        latent_categories=4,
        layers=2,
        width=16,
        heads=2,
        feedforward=32,
        dropout=0.0,
        head_layers=1,
        latent_units=16,
        reward_units=16,
        discount_units=16,
        entropy_loss="linear",
    ),
    policy=PolicyConfig(batch_size=6, horizon=4, units=16, layers=1),
    train=TrainConfig(interactions=100, prefill=50, samples=1e5, pretrain_samples=1e4),
)


def small(**options: Any) -> Config:
    """The small configuration with some options replaced; ``__`` stands for the dot: ``world_model__tokens="one"``."""
    return with_options(SMALL, {name.replace("__", "."): value for name, value in options.items()})


def image_spec(size: int = 16, channels: int = 1, stack: int = 2, actions: int = 3) -> EnvSpec:
    return EnvSpec("Picture", (channels, size, size), stack, tuple(f"action {i}" for i in range(actions)))


def vector_spec(numbers: int = 6, actions: int = 3) -> EnvSpec:
    return EnvSpec("Numbers", (numbers,), 1, tuple(f"action {i}" for i in range(actions)))


def random_batch(
    config: Config,
    spec: EnvSpec,
    *,
    terminated: Sequence[tuple[int, int]] = (),
    truncated: Sequence[tuple[int, int]] = (),
    seed: int = 0,
) -> Batch:
    """Random experience; ``terminated`` and ``truncated`` list the (row, step) where an episode ends."""
    B, T = config.world_model.batch_size, config.world_model.sequence_length
    generator = torch.Generator().manual_seed(seed)
    shape = (B, T + 2, *spec.observation_shape)
    if spec.is_image:
        o = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    else:
        o = torch.randn(shape, generator=generator)
    a = torch.randint(spec.num_actions, (B, T + 1), generator=generator)
    r = torch.randn((B, T + 1), generator=generator)
    return Batch(o, a, r, _marked(B, T + 1, terminated), _marked(B, T + 1, truncated))


def random_z(config: Config, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random one-hot latent states (*shape, Z)."""
    V, K = config.world_model.latent_variables, config.world_model.latent_categories
    index = torch.randint(K, (*shape, V), generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.one_hot(index, K).flatten(-2).to(dtype)


def _marked(B: int, T: int, places: Sequence[tuple[int, int]]) -> Tensor:
    marks = torch.zeros(B, T, dtype=torch.bool)
    for row, step in places:
        marks[row, step] = True
    return marks
