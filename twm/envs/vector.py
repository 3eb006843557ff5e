"""Several environments in lock-step, for evaluation, spread over the cores.

Each environment depends on nothing but its own seed and actions, so the result is the same however many cores
there are and however they keep time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from twm.config import ConfigError
from twm.envs.base import Env, check_action, check_seed
from twm.envs.worker import RESET, STEP, Worker, act_on
from twm.types import FrameArray


class VectorStep(NamedTuple):
    """One interaction's outcome in n environments. Rows that were not active keep their last observation."""

    observations: FrameArray  # (n, C, height, width) uint8 or (n, C) float32
    rewards: npt.NDArray[np.float32]  # (n,)
    terminated: npt.NDArray[np.bool_]  # (n,)
    truncated: npt.NDArray[np.bool_]  # (n,)
    game_over: npt.NDArray[np.bool_]  # (n,)


class VectorEnv:
    """Equal environments, stepped together. When to restart is the caller's decision.

    Every k-th of them stays in this process (``envs``, the first one always, so that it can be rendered); the others
    are made again in k - 1 worker processes. Only Atari games move (they have a ``recipe``): elsewhere a step costs
    less than the message that asks for it, or cannot safely be made twice. k is ``cores``, by default (0) all that this
    process may use.
    """

    def __init__(self, envs: Sequence[Env], cores: int = 0) -> None:
        if not envs:
            raise ConfigError("VectorEnv needs at least one environment, but got none")
        recipes = [getattr(env, "recipe", None) for env in envs]
        self.spec = envs[0].spec
        self.count = len(envs)
        self._shares = 1 if None in recipes else min(cores or _cores(), self.count)
        self.envs = list(envs[:: self._shares])
        for moved in (env for i, env in enumerate(envs) if i % self._shares):
            moved.close()
        shares = [[r for r in recipes[share :: self._shares] if r] for share in range(1, self._shares)]
        self._workers = [Worker(self.spec, share) for share in shares]
        self._observations: FrameArray = np.zeros((0, *self.spec.observation_shape), self._dtype)

    def reset(self, seeds: Sequence[int]) -> FrameArray:
        """New games in the first ``len(seeds)`` environments; the following steps concern these only."""
        if not 1 <= len(seeds) <= self.count:
            raise ConfigError(f"expected 1 to {self.count} seeds, one for each environment, but got {len(seeds)}")
        values = np.array([check_seed(seed) for seed in seeds], np.int64)
        self._observations = np.zeros((len(seeds), *self.spec.observation_shape), self._dtype)
        self._exchange(RESET, values, np.ones(len(seeds), np.bool_))
        return self._observations

    def step(self, actions: npt.ArrayLike, active: npt.ArrayLike | None = None) -> VectorStep:
        """One action for each environment; those not ``active`` are left alone."""
        rows = len(self._observations)
        mask = np.ones(rows, np.bool_) if active is None else np.asarray(active, np.bool_)
        given = np.asarray(actions)
        if given.shape != (rows,) or mask.shape != (rows,):
            raise ConfigError(f"expected {rows} actions and flags, but got the shapes {given.shape} and {mask.shape}")
        wanted = given[mask]
        if given.dtype.kind not in "iu" or ((wanted < 0) | (wanted >= self.spec.num_actions)).any():
            for a in wanted:  # one by one, so that the error names it; before any environment moves
                check_action(a, self.spec)
        before, self._observations = self._observations, np.empty_like(self._observations)  # the caller keeps the old
        if len(wanted) < rows:
            self._observations[~mask] = before[~mask]
        outcomes = self._exchange(STEP, given.astype(np.int64), mask)
        flags = outcomes[:, 1:] != 0
        return VectorStep(self._observations, outcomes[:, 0], flags[:, 0], flags[:, 1], flags[:, 2])

    @property
    def worker_ids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._workers]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        for env in self.envs:
            env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _dtype(self) -> Any:
        return np.uint8 if self.spec.is_image else np.float32

    def _exchange(
        self, command: int, values: npt.NDArray[np.int64], active: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float32]:
        """Ask the workers, do this process's share, collect. Returns (rows, 4): reward and the three flags."""
        outcomes = np.zeros((len(values), 4), np.float32)
        k, workers = (
            self._shares,
            [pair for pair in enumerate(self._workers, 1) if active[pair[0] :: self._shares].any()],
        )
        try:
            for share, worker in workers:
                worker.send(command, values[share::k], active[share::k])
            act_on(self.envs, command, values[::k], active[::k], self._observations[::k], outcomes[::k])
            for share, worker in workers:
                worker.receive(active[share::k], self._observations[share::k], outcomes[share::k])
        except BaseException:
            self.close()  # a reply may be under way that no later request must take for its own
            raise
        return outcomes


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
