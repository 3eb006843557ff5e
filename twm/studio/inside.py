"""What goes on inside the model, as arrays a page can draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MODALITIES = {1: ("steps",), 2: ("states", "actions"), 3: ("states", "actions", "rewards")}
"""Rows of the attention map by the number of tokens in a step."""


def attention_map(layers: Sequence[Tensor], tokens_per_step: int, reach: int) -> npt.NDArray[np.uint8]:
    """(R, layers, modalities, reach) where the newest token looks: weights averaged over heads, 255 = all of it.

    ``layers`` holds the attention (R, heads, queries, keys) of each layer, the newest query last. Read backwards
    from there, keys are a_t, z_t, r_{t-1}, a_{t-1}, z_{t-1}, … (with one token a step: t, t-1, …), so the e-th
    from the end is of modality [a, z, r][e mod 3] and ⌊(e + 1) / 3⌋ steps old. The last column is the present step.
    """
    n = tokens_per_step
    newest = (
        torch.stack([weights[:, :, -1].mean(1) for weights in layers], 1).float().cpu().numpy()
    )  # (R, layers, keys)
    e = np.arange(newest.shape[-1])[::-1]  # places from the end
    age = (e + 1) // 3 if n == 3 else e // n
    modality = np.array({1: [0], 2: [1, 0], 3: [1, 0, 2]}[n])[e % n]  # as MODALITIES orders them
    near = age < reach
    result = np.zeros((*newest.shape[:2], n, reach), np.uint8)
    result[:, :, modality[near], reach - 1 - age[near]] = np.rint(newest[:, :, near] * 255)
    return result


def picture(frame: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """A frame as something to look at: pictures as they are; a vector of numbers as one bar each.

    Bars go up or down from the middle, longer with the size of the number and never out of the picture.
    """
    if frame.ndim == 3:
        return frame.astype(np.uint8, copy=False)
    side = 64
    columns = np.arange(side) * len(frame) // side  # the number that each column belongs to
    x = frame.astype(np.float64)
    heights = np.sign(x) * np.log1p(np.abs(x))
    ends = np.clip(heights / (1 + np.abs(heights)), -1, 1)[columns] * (side / 2 - 1)
    y = side / 2 - 0.5 - np.arange(side)[:, None]  # above the middle is positive
    lit = (np.minimum(ends, 0) <= y) & (y <= np.maximum(ends, 0))
    result = np.where(lit, 220, 20).astype(np.uint8)
    result[side // 2] = np.maximum(result[side // 2], 90)
    # A thin gap shows where one number ends and the next begins.
    if 2 * len(frame) <= side:
        result[:, np.flatnonzero(np.diff(columns))] = 20
    return result[None]


def numbers(values: Iterable[float]) -> list[float]:
    """Enough digits for plots; what is not finite, from a broken model, shows as 0 and not as an error."""
    return [round(float(value), 5) if math.isfinite(value) else 0.0 for value in values]
