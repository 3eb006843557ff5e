"""Catch: a toy with a known answer.

Balls fall one after another, one row a step, in a random column of seven; the paddle on the bottom row moves left,
stays or moves right. A caught ball gives +1, a missed one -1, and the episode ends with the fifth. A ball needs seven
steps to fall and the paddle at most six to get below it, so the best return is exactly 5. A policy that does not
look catches each ball with probability 1/7, wherever its paddle is: its mean return is 5·(2/7 - 1) = -25/7.

One frame shows the whole state (a column of marks on the left counts the balls to come), so no stack is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from twm.config import ConfigError, EnvConfig
from twm.envs.base import (
    EnvState,
    FrameStack,
    check_action,
    check_same,
    check_seed,
    must_reset,
    pack_json,
    unpack_json,
)
from twm.types import EnvSpec, FrameArray, Step

GRID = 8  # cells along each side of the picture
COLUMNS = GRID - 1  # the leftmost cells hold the marks
BALLS = 5
BOTTOM = GRID - 1

EMPTY, MARK, PADDLE, BALL = range(4)
GRAY = np.array([0, 80, 160, 255], np.uint8)
RGB = np.array([(0, 0, 0), (80, 80, 80), (60, 140, 255), (255, 220, 60)], np.uint8)


class Catch:
    """The game, drawn with crisp cells at any size from 16 pixels."""

    def __init__(self, options: EnvConfig) -> None:
        if options.size < 2 * GRID:
            raise ConfigError(f"Catch needs env_options.size of at least {2 * GRID} pixels, but it is {options.size}")
        shape = (1 if options.gray else 3, options.size, options.size)
        self.spec = EnvSpec("Catch", shape, options.stack, ("LEFT", "STAY", "RIGHT"), optimal_return=float(BALLS))
        self._max_steps = options.max_steps
        self._cell = np.arange(options.size) * GRID // options.size  # the cell of each pixel
        self._colors = GRAY[:, None] if options.gray else RGB
        self._stack = FrameStack(shape, options.stack)
        self._rng = np.random.default_rng()
        self._running = False
        self._paddle = self._row = self._column = self._to_come = self._steps = 0

    def reset(self, seed: int | None = None) -> FrameArray:
        if seed is not None:
            self._rng = np.random.default_rng(check_seed(seed))
        self._running, self._steps = True, 0
        self._paddle, self._to_come = COLUMNS // 2, BALLS
        self._drop()
        return self._stack.restart(self._frame())

    def step(self, a: int) -> Step:
        if not self._running:
            raise must_reset("Catch")
        self._paddle = min(max(self._paddle + check_action(a, self.spec) - 1, 0), COLUMNS - 1)
        self._steps += 1
        reward, terminated = 0.0, False
        if self._row == BOTTOM:  # the last ball lay there for one frame, so that its fate could be seen
            self._drop()
        else:
            self._row += 1
            if self._row == BOTTOM:
                reward = 1.0 if self._column == self._paddle else -1.0
                terminated = self._to_come == 0
        truncated = self._steps >= self._max_steps and not terminated
        self._running = not (terminated or truncated)
        return Step(self._stack.push(self._frame()), reward, terminated, truncated, terminated or truncated)

    def save(self) -> EnvState:
        counters = [self._paddle, self._row, self._column, self._to_come, self._steps, int(self._running)]
        meta = {**self._identity(), "counters": counters, "rng": self._rng.bit_generator.state}
        return {"meta": pack_json(meta), "stack": self._stack.array.copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> FrameArray:
        meta = unpack_json(state["meta"])
        check_same(meta, self._identity())
        self._paddle, self._row, self._column, self._to_come, self._steps, running = meta["counters"]
        self._running = bool(running)
        self._rng.bit_generator.state = meta["rng"]
        return self._stack.load(state["stack"])

    def render(self) -> npt.NDArray[np.uint8]:
        picture: npt.NDArray[np.uint8] = RGB[self._cells()].repeat(32, axis=0).repeat(32, axis=1)
        return picture

    def close(self) -> None:
        """Nothing to free."""

    def _identity(self) -> dict[str, Any]:
        return {"env": "Catch", "frame_shape": list(self.spec.frame_shape), "stack": self.spec.stack}

    def _drop(self) -> None:
        self._row, self._column = 0, int(self._rng.integers(COLUMNS))
        self._to_come -= 1

    def _cells(self) -> npt.NDArray[np.intp]:
        cells = np.full((GRID, GRID), EMPTY)
        cells[GRID - self._to_come :, 0] = MARK
        cells[BOTTOM, 1 + self._paddle] = PADDLE
        cells[self._row, 1 + self._column] = BALL
        return cells

    def _frame(self) -> npt.NDArray[np.uint8]:
        colored = self._colors[self._cells()]  # (GRID, GRID, channels)
        frame: npt.NDArray[np.uint8] = colored.transpose(2, 0, 1)[:, self._cell[:, None], self._cell]
        return frame
