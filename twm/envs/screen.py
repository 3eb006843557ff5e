"""What one interaction shows: the last two frames merged by their maximum (sprites flicker), and shrunk.

There are two ways to the same pixels. :class:`PlainScreen` takes gray or coloured frames from the emulator.
:class:`RawScreen` takes them as the emulator has them, a byte for each pixel's colour: a plain copy. Most pixels are
what they were an interaction ago; screen.c makes the others gray, merges and shrinks.
"""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from twm import native
from twm.envs.resize import AreaResize, Pixels, rounds_one_way

SOURCE = Path(__file__).with_suffix(".c")
CHUNK = 16  # pixels that screen.c compares at a time
UNKNOWN = 256  # no gray value yet


class Screen(Protocol):
    merged: Pixels
    """(height, width) gray or (height, width, 3)."""

    def look(self, ale: Any) -> None:
        """The present frame as it is, with nothing to merge."""
        ...

    def first(self, ale: Any) -> None:
        """The present frame is the one before the last."""
        ...

    def last(self, ale: Any) -> None:
        """The present frame is the last one."""
        ...

    def merge(self) -> None:
        """At the end of an interaction. If it ended before its last frames came, the pixels of the one before stay: as
        they are, or merged with the first."""
        ...

    def small(self) -> Pixels:
        """``merged``, shrunk; valid until the next call of any method."""
        ...

    def load(self, merged: Pixels) -> None:
        """After :meth:`look`: go on from ``merged`` instead."""
        ...


def make_screen(shape: tuple[int, int], size: int, *, gray: bool) -> Screen:
    """For frames of (height, width), shrunk to size x size."""
    if gray and shape[1] % CHUNK == 0 and rounds_one_way(shape, size):
        c = native.load(SOURCE)
        if c is not None:
            return RawScreen(c, shape, size)
    return PlainScreen(shape if gray else (*shape, 3), size)


class PlainScreen:
    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        self._grab = "getScreenGrayscale" if len(shape) == 2 else "getScreenRGB"
        self.merged, self._first = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
        self._resize = AreaResize(shape, size)

    def look(self, ale: Any) -> None:
        self.last(ale)
        self._first.fill(0)

    def first(self, ale: Any) -> None:
        getattr(ale, self._grab)(self._first)

    def last(self, ale: Any) -> None:
        getattr(ale, self._grab)(self.merged)

    def merge(self) -> None:
        np.maximum(self.merged, self._first, out=self.merged)

    def small(self) -> Pixels:
        return self._resize(self.merged)

    def load(self, merged: Pixels) -> None:
        self.merged[:] = merged


class RawScreen:
    def __init__(self, c: ctypes.CDLL, shape: tuple[int, int], size: int) -> None:
        self.merged, self._small = np.zeros(shape, np.uint8), np.zeros((size, size), np.uint8)
        self._changed = np.ones(shape[0], np.uint8)  # rows, since the last call of merge
        table = np.full(256, UNKNOWN, np.uint16)
        self._first, self._last = (_RawFrame(c, shape, table, self._changed) for _ in range(2))
        self._first_seen = self._last_seen = False  # in this interaction
        self._merged_at = _at(self.merged)
        self._into = (self._merged_at, _at(self._small), *map(ctypes.c_int64, (*shape, size)), _at(self._changed))
        self._c = c

    def look(self, ale: Any) -> None:
        for frame in (self._first, self._last):
            frame.learn(ale)
        self._last_seen = True
        self._changed.fill(1)
        self.merge()

    def first(self, ale: Any) -> None:
        self._first.grab(ale)
        self._first_seen = True

    def last(self, ale: Any) -> None:
        self._last.grab(ale)
        self._last_seen = True

    def merge(self) -> None:
        if self._last_seen:
            first = self._first if self._first_seen else self._last
            self._c.merge(first.gray_at, self._last.gray_at, *self._into)
        elif self._first_seen:
            self._add(self._first.gray_at)
        self._first_seen = self._last_seen = False

    def small(self) -> Pixels:
        return self._small

    def load(self, merged: Pixels) -> None:
        self.merged[:] = merged
        self._changed.fill(1)
        self._add(self._merged_at)

    def _add(self, frame: ctypes.c_void_p) -> None:
        """Merge with what is merged already."""
        self._c.merge(frame, self._merged_at, *self._into)
        self._changed.fill(1)  # it is no longer what the two frames have: next time all rows count


class _RawFrame:
    """One of the two frames: in the emulator's colours, and in gray."""

    def __init__(
        self, c: ctypes.CDLL, shape: tuple[int, int], table: npt.NDArray[np.uint16], changed: npt.NDArray[np.uint8]
    ) -> None:
        """``table``, the gray value of each colour, grows as colours come by; both frames share it, and ``changed``."""
        self._raw, self._last, self._gray = (np.zeros(shape, np.uint8) for _ in range(3))
        self._table = table
        self.gray_at = _at(self._gray)
        frame = (_at(self._raw), _at(self._last), self.gray_at, _at(table))
        self._see = partial(c.see, *frame, *map(ctypes.c_int64, shape), _at(changed))

    def grab(self, ale: Any) -> None:
        ale.getScreen(self._raw)
        if self._see():
            self.learn(ale)

    def learn(self, ale: Any) -> None:
        """Take the gray values from the emulator, and remember them."""
        ale.getScreen(self._last)
        ale.getScreenGrayscale(self._gray)
        self._table[self._last] = self._gray


def _at(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
