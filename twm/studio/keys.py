"""Which keys play which action, game by game."""

from __future__ import annotations

import re
from collections.abc import Sequence

_DIRECTIONS = re.compile(r"(up|down)?(left|right)?(fire)?", re.IGNORECASE)
_IDLE = {"noop", "stay", "none", "nothing"}
_DIGITS = "1234567890"


def key_bindings(actions: Sequence[str]) -> list[list[str]]:
    """For each action the keys held together for it: ``up``, ``down``, ``left``, ``right`` and ``fire`` where its
    name says so (every Atari game: UPRIGHTFIRE), none for doing nothing, otherwise a digit. An action may have none.
    """
    bindings: list[list[str]] = []
    for index, name in enumerate(actions):
        match = _DIRECTIONS.fullmatch(name)
        if name.casefold() in _IDLE:
            bindings.append([])
        elif name and match:
            bindings.append([part.casefold() for part in match.groups() if part])
        else:
            bindings.append([_DIGITS[index]] if index < len(_DIGITS) else [])
    return bindings


def idle_action(actions: Sequence[str]) -> int | None:
    """The action of a player who holds no key; None where every action does something."""
    return next((index for index, name in enumerate(actions) if name.casefold() in _IDLE), None)
