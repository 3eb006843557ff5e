"""Random numbers that can be had again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_random_numbers(seed: int, t: int, device: torch.device) -> Iterator[None]:
    """Random numbers that depend on (seed, t) alone; torch's generators are then as they were.

    They belong to the whole process, so only one thread at a time may be inside (the studio has one for dreams).
    """
    if device.type == "cuda":
        with torch.random.fork_rng([device]):
            torch.manual_seed(_mixed(seed, t))
            yield
        return
    state = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(_mixed(seed, t))
        yield
    finally:
        torch.set_rng_state(state)


def _mixed(seed: int, t: int) -> int:
    return seed * 1_000_003 + t
