"""Messages between page and studio: each one from the page is checked, field by field, before anything looks at it.

From the page come small JSON objects, ``{"type": "seek", "t": 12}``. To the page go JSON objects (answers, errors)
and packets: a JSON header followed by pictures and other arrays of bytes, so that no pixel is ever turned into text.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twm.studio.limits import MAX_MESSAGE, MAX_ROWS, MAX_SEED, MAX_STEPS, MAX_WARM_UP

Check = Callable[[Any], Any]
"""Takes a value from the page and returns it, or raises :class:`ProtocolError` with what was expected."""

_MISSING = object()


class ProtocolError(ValueError):
    """A message that cannot be used: what was expected, and what came. The session lives on."""


class Command(NamedTuple):
    """A checked message."""

    kind: str
    fields: dict[str, Any]


# --------------------------------------------------------------------------------------------------
# Checks of single values


def whole(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ProtocolError(f"expected a whole number from {low} to {high}, but came {_shown(value)}")
        return value

    return check


def number(low: float, high: float) -> Check:
    def check(value: Any) -> float:
        valid = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not valid or not (math.isfinite(value) and low <= value <= high):
            raise ProtocolError(f"expected a number from {low:g} to {high:g}, but came {_shown(value)}")
        return float(value)

    return check


def choice(*values: str) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in values:
            raise ProtocolError(f"expected one of {', '.join(values)}, but came {_shown(value)}")
        return value

    return check


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ProtocolError(f"expected true or false, but came {_shown(value)}")
    return value


def optional(check: Check) -> Check:
    """``check``, or nothing: null and a missing field both become None."""

    def checked(value: Any) -> Any:
        return None if value is None or value is _MISSING else check(value)

    return checked


def list_of(check: Check, most: int) -> Check:
    def checked(value: Any) -> list[Any]:
        if not isinstance(value, list) or len(value) > most:
            came = f"{len(value)} of them" if isinstance(value, list) else _shown(value)
            raise ProtocolError(f"expected a list of at most {most}, but came {came}")
        return [check(item) for item in value]

    return checked


def row_of(*checks: Check) -> Check:
    """A list of fixed length."""

    def checked(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(checks):
            raise ProtocolError(f"expected a list of {len(checks)}, but came {_shown(value)}")
        return tuple(check(item) for check, item in zip(checks, value))

    return checked


def record(**checks: Check) -> Check:
    """An object with these fields and no others."""

    def checked(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ProtocolError(f"expected an object, but came {_shown(value)}")
        unknown = [name for name in value if name not in checks]
        if unknown:
            raise ProtocolError(f"unknown field {_shown(unknown[0])}: expected {', '.join(checks) or 'none'}")
        return {name: _field(name, check, value.get(name, _MISSING)) for name, check in checks.items()}

    return checked


def _field(name: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except ProtocolError as error:
        raise ProtocolError(f"{name}: {error}") from None


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --------------------------------------------------------------------------------------------------
# The messages

_step = whole(0, MAX_STEPS)
_row = whole(0, MAX_ROWS - 1)
_seed = whole(0, MAX_SEED)
_small = whole(0, 65_535)  # a category, a variable, an action: their real bounds are the model's, checked there
_temperature = number(0, 10)


def start(value: Any) -> dict[str, Any]:
    """Where a dream begins: an entry of the replay, a fresh real episode, or latent states with their context."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _STARTS:
        raise ProtocolError(f"expected an object with kind {', '.join(_STARTS)}, but came {_shown(value)}")
    checked: dict[str, Any] = _STARTS[kind](value)
    return checked


_STARTS = {
    "replay": record(kind=choice("replay"), index=whole(0, 2**40)),
    "real": record(
        kind=choice("real"), seed=_seed, steps=whole(0, MAX_WARM_UP), by=choice("policy", "random"), beside=flag
    ),
    "latents": record(
        kind=choice("latents"),
        z=list_of(list_of(_small, 4096), 4096),
        a=list_of(_small, 4096),
        r=list_of(number(-1e9, 1e9), 4096),
    ),
}

recipe = record(
    version=whole(1, 1),
    env=lambda value: _text(value),
    checkpoint=whole(0, 2**60),
    weights=optional(lambda value: _text(value)),
    start=start,
    rows=whole(1, MAX_ROWS),
    seeds=list_of(row_of(_step, _seed), MAX_STEPS + 1),
    temperatures=list_of(row_of(_step, _temperature), MAX_STEPS + 1),
    actions=list_of(list_of(_small, MAX_STEPS), MAX_ROWS),
    edits=list_of(row_of(_step, _row, _small, _small), MAX_STEPS),
)
"""What a link holds: a dream can be dreamt again from it, step by step."""

MESSAGES: Mapping[str, Mapping[str, Check]] = {
    "start": {"start": start, "rows": whole(1, MAX_ROWS), "seed": _seed},
    "again": {},
    "play": {},
    "pause": {},
    "step": {},
    "seek": {"t": _step},
    "control": {"mode": choice("you", "policy", "both")},
    "act": {"action": optional(_small)},
    "speed": {"fps": number(1, 60)},
    "temperature": {"latents": optional(_temperature), "policy": optional(_temperature)},
    "stop_at_end": {"on": flag},
    "reseed": {"seed": _seed},
    "edit": {"row": _row, "variable": _small, "category": _small},
    "focus": {"row": _row},
    "branch": {"rows": whole(1, MAX_ROWS), "seed": _seed},
    "recipe": {},
    "follow": {"recipe": recipe},
    "ping": {"id": whole(0, 2**53)},
}


def parse(message: str | bytes) -> Command:
    """The command in a message from the page."""
    if not isinstance(message, str):
        raise ProtocolError("expected a text message, but came bytes")
    if len(message) > MAX_MESSAGE:
        raise ProtocolError(f"expected at most {MAX_MESSAGE} characters, but came {len(message)}")
    try:
        data = json.loads(message, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ProtocolError(f"expected JSON, but came {_shown(message)}") from None
    kind = data.get("type") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in MESSAGES:
        raise ProtocolError(f"expected an object with type {', '.join(MESSAGES)}, but came {_shown(data)}")
    fields = {name: value for name, value in data.items() if name != "type"}
    return Command(kind, _field(kind, record(**MESSAGES[kind]), fields))


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 200:
        raise ProtocolError(f"expected a text of at most 200 characters, but came {_shown(value)}")
    return value


# --------------------------------------------------------------------------------------------------
# Packets


def pack(header: Mapping[str, Any], parts: Mapping[str, npt.NDArray[np.uint8]]) -> bytes:
    """Length of the header (4 bytes, little-endian), the header as JSON, then the arrays one after the other.

    The header's ``parts`` lists names and shapes in that order; all are bytes.
    """
    shapes = [[name, list(part.shape)] for name, part in parts.items()]
    text = json.dumps({**header, "parts": shapes}, allow_nan=False).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(part.tobytes() for part in parts.values())])


def unpack(packet: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.uint8]]]:
    """The reverse of :func:`pack`, as the page does it."""
    (length,) = struct.unpack_from("<I", packet)
    header = json.loads(packet[4 : 4 + length])
    offset, parts = 4 + length, {}
    for name, shape in header.pop("parts"):
        size = math.prod(shape)
        parts[name] = np.frombuffer(packet, np.uint8, size, offset).reshape(shape)
        offset += size
    return header, parts
