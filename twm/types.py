"""What flows between the rooms of the house. Letters of the shapes, used everywhere:

B  sequences in a batch (N in the paper)      V  latent variables     C  channels of an observation
T  steps of a sequence (ℓ in the paper)       K  categories of each   A  actions
M  dreams, H  steps of a dream                Z  = V·K, a flat z      D  transformer width

A latent state is a one-hot vector z (Z), or in dreams its categories c (V).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # environments and their worker processes use this file too, and need no torch
    from torch import Tensor

FrameArray = npt.NDArray[np.generic]


@dataclass(frozen=True)
class EnvSpec:
    """What the models must know of an environment, and what a person wants to read of it."""

    name: str
    frame_shape: tuple[int, ...]  # one stored frame: (channels, height, width) uint8, or (numbers,) float32
    stack: int  # frames in an observation; o has frame_shape with its first axis times stack
    actions: tuple[str, ...]  # a name for each action, e.g. ("NOOP", "FIRE", ...)
    optimal_return: float | None = None  # best possible mean score, where it is known

    @property
    def num_actions(self) -> int:
        return len(self.actions)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.frame_shape[0] * self.stack, *self.frame_shape[1:])

    @property
    def is_image(self) -> bool:
        return len(self.frame_shape) == 3


class Step(NamedTuple):
    """One interaction's outcome. ``terminated`` and ``truncated`` end the episode *for learning*."""

    observation: FrameArray  # (C, height, width) uint8 or (C,) float32: newest frame last
    reward: float
    terminated: bool  # no future: the value of what follows is 0 (a lost life counts while training)
    truncated: bool  # cut off by a time limit: the future goes on unseen
    game_over: bool  # the real game ended; its score is complete


class Outcome(NamedTuple):
    """A :class:`Step` without its observation."""

    reward: float
    terminated: bool
    truncated: bool
    game_over: bool


class Transitions(NamedTuple):
    """A batch of sequences as the replay assembles it (numpy). Index 0 is the step of context in front,
    1..T the sequence; o has one more, T+1: the observation behind it."""

    o: FrameArray  # (B, T+2, C, height, width) uint8 or (B, T+2, C) float32
    a: npt.NDArray[np.int64]  # (B, T+1)
    r: npt.NDArray[np.float32]  # (B, T+1)
    terminated: npt.NDArray[np.bool_]  # (B, T+1): the episode ended after this step
    truncated: npt.NDArray[np.bool_]  # (B, T+1): likewise, by a time limit


class Batch(NamedTuple):
    """:class:`Transitions` as tensors on the training device."""

    o: Tensor
    a: Tensor
    r: Tensor
    terminated: Tensor
    truncated: Tensor


class Prediction(NamedTuple):
    """What the dynamics model says of the step after the hidden state h."""

    z_logits: Tensor  # (..., V, K) of the next latent state
    c: Tensor  # (..., V) the next latent state, drawn
    r_hat: Tensor  # (...) mean reward
    gamma_hat: Tensor  # (...) mean discount, in (0, 1)


class Starts(NamedTuple):
    """Where dreams begin: z_t, with one step of context (z, a, r of t-1) where the episode had one."""

    z: Tensor  # (M, Z) one-hot
    context_z: Tensor  # (M, Z)
    context_a: Tensor  # (M,)
    context_r: Tensor  # (M,)
    has_context: Tensor  # (M,) bool


class Dream(NamedTuple):
    """M imagined trajectories of H steps."""

    c: Tensor  # (M, H+1, V) latent states: where each step begins, and where the last one leads
    a: Tensor  # (M, H)
    r: Tensor  # (M, H) predicted rewards
    gamma: Tensor  # (M, H) predicted discounts
    ended: Tensor  # (M, H) bool: after this step the row goes on from a fresh state
    h: Tensor  # (M, H+1, D): h_{t-1}, what the transformer knew before step t
    logits: Tensor  # (M, H, A): the actor's, with its graph
    values: Tensor  # (M, H+1, ...): the critic's outputs, with its graph but for the last step
