"""States of the transformer's memory, kept now and then, so that going back in a dream costs few steps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from twm.studio.limits import KEYFRAME_BYTES
from twm.world_model.dynamics import DynamicsModel, History


class Keyframe(NamedTuple):
    """A copy of a history: with it restored, every later number is the same to the last bit."""

    step: int
    episode: Tensor
    previous: Tensor
    tensors: tuple[Tensor, ...]  # memory: keys, values, episodes, steps of its tokens; vanilla: the inputs

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


class Keyframes:
    """One every ``interval`` steps. When they outgrow their budget, every other one goes and the interval doubles."""

    def __init__(self, dynamics: DynamicsModel, history: History, *, budget: int = KEYFRAME_BYTES) -> None:
        self._dynamics, self._budget = dynamics, budget
        self._rows = history.episode.shape[0]
        self.interval = 16
        self._frames = {0: copy(history)}

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def nbytes(self) -> int:
        return sum(frame.nbytes for frame in self._frames.values())

    def offer(self, t: int, history: History) -> None:
        """Keep the history after ``t`` steps of the dream, if it is time."""
        if t % self.interval:
            return
        self._frames[t] = copy(history)
        while self.nbytes > self._budget and len(self._frames) > 1:
            self.interval *= 2
            self._frames = {t: frame for t, frame in self._frames.items() if t % self.interval == 0}

    def nearest(self, t: int) -> tuple[int, History]:
        """The last one not after ``t``, as a history to go on with."""
        found = max(kept for kept in self._frames if kept <= t)
        return found, self._restore(self._frames[found])

    def forget_after(self, t: int) -> None:
        self._frames = {kept: frame for kept, frame in self._frames.items() if kept <= t}

    @torch.no_grad()
    def _restore(self, frame: Keyframe) -> History:
        history = self._dynamics.begin(self._rows, attention=True)
        history.step, history.episode, history.previous = frame.step, frame.episode, frame.previous
        if history.memory is None:
            history.inputs = tuple(tensor.clone() for tensor in frame.tensors)
            return history
        memory, (k, v, episode, step) = history.memory, frame.tensors
        n = memory.length = step.shape[0]
        memory.k[..., :n, :], memory.v[..., :n, :] = k, v
        memory.episode[:, :n], memory.step[:n] = episode, step
        return history


def copy(history: History) -> Keyframe:
    if history.memory is None:
        tensors = tuple(tensor.clone() for tensor in history.inputs)
    else:
        m, n = history.memory, history.memory.length
        tensors = (m.k[..., :n, :].clone(), m.v[..., :n, :].clone(), m.episode[:, :n].clone(), m.step[:n].clone())
    return Keyframe(history.step, history.episode, history.previous, tensors)
