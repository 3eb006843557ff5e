"""The attention map by hand, vectors as pictures."""

from __future__ import annotations

import numpy as np
import torch

from twm.studio.inside import attention_map, numbers, picture


def weights(*values: float) -> torch.Tensor:
    """(rows 1, heads 2, queries 2, keys): the newest query is the last, the heads average to ``values``."""
    newest = torch.tensor(values)
    heads = torch.stack([newest * 0.5, newest * 1.5])
    return torch.stack([torch.full_like(heads, 9.0), heads], 1)[None]


def test_three_tokens_a_step() -> None:
    """Keys z0 a0 r0 z1 a1, seen from a1: 51/255 = 0.2."""
    result = attention_map([weights(0.2, 0.4, 0.1, 0.1, 0.2)], 3, reach=3)
    assert result.shape == (1, 1, 3, 3)
    np.testing.assert_array_equal(
        result[0, 0], np.array([[0, 51, 26], [0, 102, 51], [0, 26, 0]])
    )  # 0.1 · 255 = 25.5, rounded to even: 26


def test_two_tokens_a_step_and_one() -> None:
    two = attention_map([weights(0.2, 0.4, 0.2, 0.2)], 2, reach=2)[0, 0]
    np.testing.assert_array_equal(two, [[51, 51], [102, 51]])
    one = attention_map([weights(0.2, 0.8), weights(0.4, 0.6)], 1, reach=3)[0]
    np.testing.assert_array_equal(one, [[[0, 51, 204]], [[0, 102, 153]]])


def test_what_lies_beyond_reach_is_left_out() -> None:
    np.testing.assert_array_equal(attention_map([weights(0.2, 0.4, 0.4)], 1, reach=2)[0, 0], [[102, 102]])


def test_a_vector_is_a_picture_of_bars() -> None:
    image = picture(np.array([0.0, 1e9, -1e9, 0.5], np.float32))
    assert image.shape == (1, 64, 64)
    lit = (image[0] == 220).sum(0)  # height of the bar in each column
    assert lit[8] == 0
    assert lit[24] >= 28
    assert lit[40] >= 28
    assert 5 < lit[56] < 20
    assert (image[0, :31, 24] == 220).sum() > 25  # up
    assert (image[0, 33:, 40] == 220).sum() > 25  # down


def test_pictures_stay_as_they_are() -> None:
    frame = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    np.testing.assert_array_equal(picture(frame), frame)


def test_numbers_are_finite() -> None:
    assert numbers([1.0000001, float("nan"), float("inf")]) == [1.0, 0.0, 0.0]
