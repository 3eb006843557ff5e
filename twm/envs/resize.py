"""Shrinking a screen, each new pixel the mean of the area it covers: OpenCV's INTER_AREA, only faster.

With the integral image I(y, x), the sum of the pixels above y and left of x, read between its points by linear
interpolation, the sum over any rectangle is I at two opposite corners minus I at the other two. The corners of all
the new pixels form a grid of (size + 1)² points, so a few calls for the whole screen do what OpenCV does row by row.

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

Resize = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]]


@functools.cache
def area_resize(shape: tuple[int, ...], size: int) -> Resize:
    """A function that shrinks screens of ``shape``, (height, width) or (height, width, 3), to size x size."""
    import cv2

    if len(shape) == 2 and _rounds_one_way(shape, size):
        return _from_corners(shape, size)
    return lambda screen: np.asarray(cv2.resize(screen, (size, size), interpolation=cv2.INTER_AREA), np.uint8)


def _rounds_one_way(shape: tuple[int, ...], size: int) -> bool:
    if min(shape) < size or any(size // math.gcd(side, size) > 32 for side in shape):
        return False  # remap knows 32 places between two points
    product = math.prod(side // math.gcd(side, size) for side in shape)
    return product % 2 == 1 and product < 1000


def _from_corners(shape: tuple[int, ...], size: int) -> Resize:
    import cv2

    height, width = shape
    edges = np.arange(size + 1, dtype=np.float32)
    x, y = np.meshgrid(edges * (width / size), edges * (height / size))
    scale = size * size / (height * width)

    def resize(screen: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        integral = cv2.integral(screen, sdepth=cv2.CV_64F)
        corners = cv2.remap(integral, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        rows = corners[1:] - corners[:-1]
        return np.asarray(cv2.convertScaleAbs(rows[:, 1:] - rows[:, :-1], alpha=scale), np.uint8)

    return resize
