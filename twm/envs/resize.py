"""Shrinking a screen, each new pixel the mean of the area it covers: OpenCV's INTER_AREA, only faster.

With the integral image I(y, x), the sum of the pixels above y and left of x, read between its points by linear
interpolation, the sum over any rectangle is I at two opposite corners minus I at the other two. The corners of all
the new pixels form a grid of (size + 1)² points, so a few calls for the whole screen do what OpenCV does row by row.
And from one interaction to the next most of a screen stays as it is: only the rows from the first difference to the
last are computed again.

The results are the same to the last bit wherever rounding cannot go two ways. Let p = height / gcd(height, size) and
q = width / gcd(width, size): a mean is a whole number over p·q. If p·q is odd, it never lies halfway between two bytes
but at least 1 / (2 p·q) off, and the errors of either way of computing stay below that as long as p·q < 1000. From
210 x 160 to 64 x 64 it is 105·5 = 525. Elsewhere OpenCV does the work.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Shrink = Callable[[Pixels, Pixels, int, int], None]
"""Called with a screen, the small one, and a range of rows of the screen: brings the small one up to date there."""


class AreaResize:
    """Shrinks screens of ``shape``, (height, width) or (height, width, 3), to size x size.

    Made for screens that come one after another: what a screen has in common with the one before costs next to nothing.
    """

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        self._shrink = _from_corners(shape, size) if rounds_one_way(shape, size) else _by_opencv(size)
        self._last, self._small = np.zeros(shape, np.uint8), np.zeros((size, size, *shape[2:]), np.uint8)
        # Rows are compared eight bytes at a time where they can be.
        self._word = np.uint64 if self._last[0].nbytes % 8 == 0 else np.uint8
        self._last_words = self._last.reshape(-1).view(self._word)
        self._words_a_row = len(self._last_words) // shape[0]

    def __call__(self, screen: Pixels) -> Pixels:
        """The small screen, valid until the next call. ``screen`` must be contiguous."""
        differs = (screen.reshape(-1).view(self._word) != self._last_words).tobytes()
        first = differs.find(1)
        if first >= 0:
            top, bottom = first // self._words_a_row, differs.rfind(1) // self._words_a_row + 1
            self._shrink(screen, self._small, top, bottom)
            self._last[top:bottom] = screen[top:bottom]
        return self._small


def rounds_one_way(shape: tuple[int, ...], size: int) -> bool:
    if len(shape) != 2 or min(shape) < size or any(size // math.gcd(side, size) > 32 for side in shape):
        return False  # remap knows 32 places between two points
    product = math.prod(side // math.gcd(side, size) for side in shape)
    return product % 2 == 1 and product < 1000


def _by_opencv(size: int) -> Shrink:
    import cv2

    def shrink(screen: Pixels, small: Pixels, _top: int, _bottom: int) -> None:
        cv2.resize(screen, (size, size), dst=small, interpolation=cv2.INTER_AREA)

    return shrink


@functools.cache
def _from_corners(shape: tuple[int, ...], size: int) -> Shrink:
    import cv2

    height, width = shape
    edges = np.arange(size + 1, dtype=np.float32)
    x, y = np.meshgrid(edges * (width / size), edges * (height / size))
    scale = size * size / (height * width)

    def shrink(screen: Pixels, small: Pixels, top: int, bottom: int) -> None:
        first, last = top * size // height, -(-bottom * size // height)  # the new rows
        start, stop = first * height // size, -(-last * height // size)  # all that they cover
        integral = cv2.integral(screen[start:stop], sdepth=cv2.CV_64F)
        corner_x, corner_y = x[first : last + 1], y[first : last + 1] - np.float32(start)
        corners = cv2.remap(integral, corner_x, corner_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        rows = corners[1:] - corners[:-1]
        cv2.convertScaleAbs(rows[:, 1:] - rows[:, :-1], dst=small[first:last], alpha=scale)

    return shrink
