"""The fast way to shrink a screen gives OpenCV's pixels, every one."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from twm.envs.resize import AreaResize, rounds_one_way


def opencvs(screen: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    return np.asarray(cv2.resize(screen, (size, size), interpolation=cv2.INTER_AREA), np.uint8)


def test_an_area_by_hand() -> None:
    """Five columns become two, three rows one: the first pixel covers columns 0, 1 and half of 2."""
    screen = np.array([[0, 10, 20, 30, 40]] * 6, np.uint8)
    assert AreaResize((6, 5), 2)(screen).tolist() == [[8, 32], [8, 32]]  # (0 + 10 + 10) / 2.5, (10 + 30 + 40) / 2.5


@pytest.mark.parametrize("shape", [(210, 160), (250, 160), (214, 160), (210, 160, 3)])
@pytest.mark.parametrize("size", [64, 84, 32, 16])
def test_the_pixels_are_opencvs(shape: tuple[int, ...], size: int) -> None:
    rng, resize = np.random.default_rng(0), AreaResize(shape, size)
    noise = [rng.integers(0, 256, shape).astype(np.uint8) for _ in range(20)]
    blocks = [np.where(rng.random(shape) < p, 255, 0).astype(np.uint8) for p in (0.01, 0.5, 0.99)]
    for screen in [*noise, *blocks, np.full(shape, 255, np.uint8), np.zeros(shape, np.uint8)]:
        assert np.array_equal(resize(screen), opencvs(screen, size))


@pytest.mark.parametrize(("shape", "size"), [((210, 160), 64), ((250, 160), 64), ((210, 160, 3), 64), ((6, 5), 2)])
def test_only_what_changed_is_computed_again_and_nothing_else_changes(shape: tuple[int, ...], size: int) -> None:
    """Patches anywhere, down to none at all."""
    rng, resize = np.random.default_rng(0), AreaResize(shape, size)
    screen = rng.integers(0, 256, shape).astype(np.uint8)
    for _ in range(200):
        top, left = rng.integers(shape[0]), rng.integers(shape[1])
        height, width = rng.integers(shape[0] // 2), rng.integers(shape[1] + 1)
        screen[top : top + height, left : left + width] = rng.integers(0, 256)
        assert np.array_equal(resize(screen), opencvs(screen, size))


def test_where_it_is_used() -> None:
    """105·5 = 525 is odd; 84 columns of 160 are 40 over 21, and 5·40 is even: a mean may lie halfway."""
    assert rounds_one_way((210, 160), 64)
    assert not rounds_one_way((210, 160), 84)
    assert not rounds_one_way((32, 32), 64)
