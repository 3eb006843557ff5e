"""What can be asked of a run by its address, beyond its plain facts."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from twm.studio import library
from twm.studio.inside import picture
from twm.studio.library import Run
from twm.studio.protocol import ProtocolError, pack


class Query(Protocol):
    """The part of an address behind the question mark."""

    def get(self, key: str, /) -> str | None: ...
    def getlist(self, key: Any) -> list[str]: ...


def curves(run: Run, query: Query) -> dict[str, Any]:
    """``key``, repeated: which curves."""
    return run.curves(query.getlist("key")[:32])


def strip(run: Run, query: Query) -> bytes:
    """A film strip of the replay: ``count`` entries from ``first`` on, every ``stride``-th."""
    replay = run.replay()
    if replay is None or not len(replay):
        return pack({"length": 0, "indices": []}, {})
    first = min(whole(query, "first", 0), len(replay) - 1)
    stride, count = whole(query, "stride", 8, low=1), whole(query, "count", 24, low=1, high=300)
    facts, frames = library.strip(replay, first, stride, count)
    return pack(facts, {"frames": np.stack([picture(frame) for frame in frames])})


def episodes(run: Run, _: Query) -> list[dict[str, Any]]:
    """The newest episodes of the replay."""
    replay = run.replay()
    return [] if replay is None else library.last_episodes(replay)


def whole(query: Query, name: str, otherwise: int, *, low: int = 0, high: int = 2**40) -> int:
    """A whole number of the address; ``otherwise`` if it is not there."""
    text = query.get(name)
    if text is None:
        return otherwise
    if len(text) > 16 or not text.isascii() or not text.isdecimal() or not low <= int(text) <= high:
        raise ProtocolError(f"{name}: expected a whole number from {low} to {high}, but came {text[:40]!r}")
    return int(text)
