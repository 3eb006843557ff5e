"""Random numbers that can be had again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from twm.train.evaluate import own_random_numbers

drawing = threading.Lock()
"""Held by whoever draws from torch's generators: they belong to the whole process, dreams and readers are threads."""


def generator(seed: int, t: int) -> torch.Generator:
    """For step t of a dream: nobody else draws from it."""
    return torch.Generator().manual_seed(_mixed(seed, t))


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """torch's own random numbers depend on the seed alone inside; outside they are as they were."""
    with drawing, own_random_numbers(_mixed(seed, 0)):
        yield


def _mixed(seed: int, t: int) -> int:
    return seed * 1_000_003 + t
