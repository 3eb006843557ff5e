"""Experience: what happened, each frame once, and the balanced drawing of training sequences from it.

One stream of entries, oldest first. Entry t holds the newest frame of o_t, the action a_t taken on seeing
o_t, its reward r_t, and whether the episode ended after a_t. Entry 0 begins an episode, and entry t+1
does if and only if entry t ended one. Observations are stacks of frames; they are put together when they are
asked for, so that 100,000 interactions with 64x64 gray frames take 411 MB instead of 1.6 GB.

A sequence of T steps with start t reads entries t-1 (context), t, …, t+T-1, and the observation t+T behind:
starts 1 ≤ t ≤ len - T - 1 are valid. A sequence may run across an episode's end; the models mask what must
not be seen, a stack of frames never mixes two episodes.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from twm.config import ConfigError
from twm.storage import Column
from twm.types import EnvSpec, FrameArray, Transitions

STEP = np.dtype([("a", "<i4"), ("r", "<f4"), ("terminated", "?"), ("truncated", "?")])
"""What an entry holds besides its frame."""

FRAMES_FILE, STEPS_FILE = "frames.npy", "steps.npy"


def draw_balanced(
    visits: npt.NDArray[np.int32], count: int, temperature: float, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """``count`` different indices with p = softmax(-visits / τ), drawn one after the other without replacement
    (paper, section 2.3). τ = ∞ is exactly uniform. Returned in the order they were drawn.

    An exponential race: with E_i ~ Exp(1), the arrival times E_i / w_i, w_i = exp(-v_i / τ), come in the order of
    successive draws with probabilities proportional to w among those left. Compared as log E_i + v_i / τ, which
    neither over- nor underflows for any τ > 0.
    """
    if math.isinf(temperature):
        return rng.choice(len(visits), size=count, replace=False)
    arrivals = rng.standard_exponential(len(visits))
    with np.errstate(divide="ignore"):  # E = 0 is possible: log says -inf, first to arrive, which is right
        np.log(arrivals, out=arrivals)
    arrivals += (visits - visits.min()) / temperature
    first = np.argpartition(arrivals, count - 1)[:count]
    return first[np.argsort(arrivals[first])].astype(np.int64, copy=False)


class Replay:
    """Storage and sampling. Made by :meth:`create` (new) or :meth:`open` (resume).

    On disk there are two ordinary .npy files, ``frames.npy`` and ``steps.npy``, readable with ``np.load``. They are
    sized for ``capacity`` entries but sparse: disk space is taken as entries are written. Visits belong to the
    training state and are saved with it.
    """

    def __init__(self, spec: EnvSpec, frames: Column, steps: Column, length: int, visits: npt.NDArray[np.int32]):
        self.spec = spec
        self.capacity = len(steps.rows)
        self._frames, self._steps, self._length = frames, steps, length
        self._visits = np.zeros(self.capacity, np.int32)
        self._visits[:length] = visits
        self._since = np.zeros(self.capacity, np.int32)  # steps since the entry's episode began
        self._since[:length] = _steps_since_start(steps.rows[:length])

    @classmethod
    def create(cls, directory: Path | None, spec: EnvSpec, capacity: int) -> Replay:
        """An empty replay for ``capacity`` entries in ``directory``, in place of any that is there; None: in memory."""
        if capacity < 1:
            raise ConfigError(f"replay capacity must be at least 1 entry, got {capacity}\n  raise --train.interactions")
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        frames_path, steps_path = (None, None) if directory is None else _paths(directory)
        frames = Column.create(frames_path, _frame_dtype(spec), (capacity, *spec.frame_shape))
        steps = Column.create(steps_path, STEP, (capacity,))
        return cls(spec, frames, steps, 0, np.zeros(0, np.int32))

    @classmethod
    def open(
        cls, directory: Path, spec: EnvSpec, length: int, visits: npt.NDArray[np.int32] | None, capacity: int
    ) -> Replay:
        """The replay in ``directory`` as it was when it held ``length`` entries; later ones are overwritten.

        ``visits`` of these entries (None: no visits). ``capacity`` may be larger than before. Frames are mapped,
        not read.
        """
        if not 0 <= length <= capacity:
            raise ConfigError(
                f"a replay of {length:,} entries does not fit into a capacity of {capacity:,}\n"
                "  resume with at least as many --train.interactions as the run already has"
            )
        visits = np.zeros(length, np.int32) if visits is None else visits
        if visits.shape != (length,):
            raise ConfigError(
                f"replay of {length:,} entries needs as many visit counts, got shape {visits.shape}\n"
                "  counts and length must come from the same checkpoint"
            )
        frames_path, steps_path = _paths(directory)
        frames = Column.open(frames_path, _frame_dtype(spec), spec.frame_shape, length, capacity)
        steps = Column.open(steps_path, STEP, (), length, capacity)
        return cls(spec, frames, steps, length, visits)

    @classmethod
    def read(cls, directory: Path, spec: EnvSpec, length: int, visits: npt.NDArray[np.int32] | None = None) -> Replay:
        """The first ``length`` entries, to look at: works where nobody may write, and while a training writes."""
        frames_path, steps_path = _paths(directory)
        frames = Column.read(frames_path, _frame_dtype(spec), spec.frame_shape, length)
        steps = Column.read(steps_path, STEP, (), length)
        return cls(spec, frames, steps, length, np.zeros(length, np.int32) if visits is None else visits)

    def append(self, frame: FrameArray, a: int, r: float, terminated: bool, truncated: bool) -> None:
        """Add entry t: the newest frame of o_t, the action on it, its reward, and whether that ended the episode."""
        t = self._length
        if t == self.capacity:
            raise ConfigError(
                f"replay is full: it was made for {t:,} entries\n  raise its capacity (--train.interactions)"
            )
        expected = self._frames.rows
        if frame.shape != self.spec.frame_shape or frame.dtype != expected.dtype:
            raise ConfigError(
                f"expected one frame of shape {self.spec.frame_shape} and type {expected.dtype}, "
                f"got {frame.shape} {frame.dtype}\n  append the newest frame alone, not the stack"
            )
        if not 0 <= a < self.spec.num_actions:
            raise ConfigError(f"expected an action in 0..{self.spec.num_actions - 1} for {self.spec.name}, got {a}")
        self._frames.write(t, np.ascontiguousarray(frame))
        self._steps.write(t, np.array((a, r, terminated, truncated), STEP))
        begins = t == 0 or self._ended(t - 1)
        self._since[t] = 0 if begins else self._since[t - 1] + 1
        self._visits[t] = 0
        self._length = t + 1

    def __len__(self) -> int:
        return self._length

    @property
    def visits(self) -> npt.NDArray[np.int32]:
        """(len,) How often each entry was drawn as the start of a sequence. A view: copy it to keep it."""
        return self._visits[: self._length]

    @property
    def is_episode_start(self) -> npt.NDArray[np.bool_]:
        """(len,) Which entries begin an episode."""
        begins: npt.NDArray[np.bool_] = self._since[: self._length] == 0
        return begins

    def starts(self, length: int) -> int:
        """How many valid starts sequences of ``length`` steps have: they are 1, …, starts."""
        return max(0, self._length - length - 1)

    def sample(
        self, batch_size: int, length: int, temperature: float, rng: np.random.Generator, *, count: bool = True
    ) -> tuple[Transitions, npt.NDArray[np.int64]]:
        """B different sequences of T steps, their starts drawn by :func:`draw_balanced`; and the starts (B,).

        Each start's visit is counted. ``count=False`` leaves the counts alone, for pretraining: it draws the few
        prefilled entries so often that, counted, they would hardly be drawn again.
        """
        if not temperature > 0:
            raise ConfigError(
                f"sampling temperature must be above 0, got {temperature}\n"
                "  set --replay.temperature, e.g. 20; inf is uniform sampling"
            )
        starts = self.starts(length)
        if starts < batch_size:
            raise ConfigError(
                f"replay holds {self._length:,} steps, but a training batch needs {batch_size + length + 1:,} "
                f"({batch_size:,} different sequences of {length}, a step in front and one behind)\n"
                "  collect more first (--train.prefill) or lower --world-model.batch-size"
            )
        chosen = 1 + draw_balanced(self._visits[1 : starts + 1], batch_size, temperature, rng)
        if count:
            self._visits[chosen] += 1  # all different, so no increment is lost
        return self.sequences(chosen, length), chosen

    def sequences(self, starts: npt.ArrayLike, length: int) -> Transitions:
        """The sequences of T steps with the given starts (B,); visits are not counted."""
        t = np.asarray(starts, np.int64)
        if t.size and not (t.min() >= 1 and t.max() <= self.starts(length)):
            raise IndexError(
                f"sequences of {length} steps start in 1..{self.starts(length)} (replay holds {self._length} steps), "
                f"got {t.min()}..{t.max()}"
            )
        entries = t[:, None] + np.arange(-1, length + 1)  # (B, T+2)
        steps = self._steps.rows[entries[:, :-1]]  # (B, T+1)
        return Transitions(
            o=self.observations(entries),
            a=steps["a"].astype(np.int64),
            r=steps["r"].astype(np.float32),
            terminated=steps["terminated"].copy(),
            truncated=steps["truncated"].copy(),
        )

    def sequence(self, start: int, length: int) -> Transitions:
        """One sequence, as a batch of one; visits are not counted."""
        return self.sequences([start], length)

    def observations(self, indices: npt.ArrayLike) -> FrameArray:
        """Stacked observations of entries, any shape of ``indices``: (..., C, height, width) or (..., C).

        The k-th newest frame of o_t is frame max(t - k, t - since_t): before an episode's first frame comes that
        frame again, as in the environment's own stack.
        """
        t = np.asarray(indices, np.int64)
        if t.size and not (t.min() >= 0 and t.max() < self._length):
            raise IndexError(f"replay holds entries 0..{self._length - 1}, got {t.min()}..{t.max()}")
        back = np.arange(self.spec.stack - 1, -1, -1)  # newest last
        frames = t[..., None] - np.minimum(back, self._since[t][..., None])  # (..., stack)
        return self._frames.rows[frames].reshape(*t.shape, *self.spec.observation_shape)

    def flush(self) -> None:
        """Return when every entry is on the disk: what a checkpoint that names ``len(self)`` relies on."""
        self._frames.flush()
        self._steps.flush()

    def close(self) -> None:
        """Give the files back. Nothing can be appended afterwards."""
        self._frames.close()
        self._steps.close()

    @property
    def rewards(self) -> npt.NDArray[np.float32]:
        """(len,) r of every entry."""
        rewards: npt.NDArray[np.float32] = self._steps.rows["r"][: self._length]
        return rewards

    @property
    def actions(self) -> npt.NDArray[np.int64]:
        """(len,) a of every entry."""
        actions: npt.NDArray[np.int64] = self._steps.rows["a"][: self._length].astype(np.int64)
        return actions

    @property
    def terminated(self) -> npt.NDArray[np.bool_]:
        """(len,) Which entries end an episode for good."""
        terminated: npt.NDArray[np.bool_] = self._steps.rows["terminated"][: self._length]
        return terminated

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        """(len,) Which entries end an episode, by termination or truncation."""
        steps = self._steps.rows[: self._length]
        ended: npt.NDArray[np.bool_] = steps["terminated"] | steps["truncated"]
        return ended

    def cut(self) -> None:
        """The episode of the last entry will not go on (its environment is gone): it counts as truncated."""
        if self._length and not self._ended(self._length - 1):
            last = self._steps.rows[self._length - 1].copy()
            last["truncated"] = True
            self._steps.write(self._length - 1, last)

    def _ended(self, t: int) -> bool:
        step = self._steps.rows[t]
        return bool(step["terminated"] or step["truncated"])


def _steps_since_start(steps: npt.NDArray[np.void]) -> npt.NDArray[np.int32]:
    """(len,) For each entry, how many steps ago its episode began."""
    t = np.arange(len(steps), dtype=np.int32)
    begins = np.ones(len(steps), np.bool_)
    begins[1:] = (steps["terminated"] | steps["truncated"])[:-1]
    since: npt.NDArray[np.int32] = t - np.maximum.accumulate(np.where(begins, t, 0), dtype=np.int32)
    return since


def _frame_dtype(spec: EnvSpec) -> np.dtype[np.generic]:
    return np.dtype(np.uint8 if spec.is_image else np.float32)


def _paths(directory: Path) -> tuple[Path, Path]:
    return directory / FRAMES_FILE, directory / STEPS_FILE
