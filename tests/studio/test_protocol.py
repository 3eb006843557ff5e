"""Messages: what is accepted, what is refused and in which words; packets there and back."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twm.studio.limits import MAX_MESSAGE
from twm.studio.protocol import MESSAGES, Command, ProtocolError, pack, parse, unpack


def test_a_good_message() -> None:
    assert parse('{"type": "seek", "t": 12}') == Command("seek", {"t": 12})
    assert parse('{"type": "temperature", "latents": 1}') == Command("temperature", {"latents": 1.0, "policy": None})


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('{"type": "seek"}', "seek: t: expected a whole number from 0 to 3000, but came nothing"),
        ('{"type": "seek", "t": -1}', "seek: t: expected a whole number from 0 to 3000, but came -1"),
        ('{"type": "seek", "t": 1.0}', "expected a whole number"),
        ('{"type": "seek", "t": true}', "expected a whole number"),
        ('{"type": "seek", "t": 1, "x": 2}', "unknown field 'x': expected t"),
        ('{"type": "speed", "fps": NaN}', "expected JSON"),
        ('{"type": "speed", "fps": 1e999}', "expected a number from 1 to 60, but came inf"),
        ('{"type": "control", "mode": "me"}', "mode: expected one of you, policy, both, but came 'me'"),
        ('{"type": "start", "start": {"kind": "file"}, "rows": 1, "seed": 0}', "kind replay, real, latents"),
        ('{"type": "start", "start": {"kind": "replay", "index": "/etc"}, "rows": 1, "seed": 0}', "start: index: "),
        ('{"type": "fly"}', "expected an object with type start"),
        ('{"type": ["seek"]}', "expected an object with type start"),
        ("[]", "expected an object"),
        ("null", "expected an object"),
        ("", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ("1" * 5_000, "expected JSON"),
        (b"\x00", "expected a text message, but came bytes"),
        (" " * (MAX_MESSAGE + 1), f"expected at most {MAX_MESSAGE} characters"),
    ],
)
def test_bad_messages_say_what_was_expected(message: str | bytes, words: str) -> None:
    with pytest.raises(ProtocolError) as error:
        parse(message)
    assert words in str(error.value)
    assert len(str(error.value)) < 500


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.sampled_from(sorted(MESSAGES)), st.dictionaries(st.sampled_from(["t", "start", "rows", "recipe"]), json_values)
)
def test_whatever_comes_is_a_command_or_a_protocol_error(kind: str, fields: dict[str, object]) -> None:
    with contextlib.suppress(ProtocolError):
        assert parse(json.dumps({"type": kind, **fields})).kind == kind


def test_packets_come_back_as_they_went() -> None:
    parts = {"frames": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "none": np.zeros((0, 5), np.uint8)}
    header, back = unpack(pack({"t": 3}, parts))
    assert header == {"t": 3}
    assert list(back) == ["frames", "none"]
    for name, part in parts.items():
        np.testing.assert_array_equal(back[name], part)


def test_a_packet_by_hand() -> None:
    text = b'{"t": 1, "parts": [["x", [2]]]}'
    assert pack({"t": 1}, {"x": np.array([7, 9], np.uint8)}) == bytes([len(text), 0, 0, 0]) + text + b"\x07\x09"
