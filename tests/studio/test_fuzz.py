"""More than ten thousand messages that nobody would send: no crash, no leak, no file that is not offered."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import Any

import pytest
from studio.clients import REPLAY, get, visiting
from studio.serving import Served, resident_bytes, serving, until
from websockets.exceptions import ConnectionClosed

from twm.studio import server
from twm.studio.library import Run
from twm.studio.limits import Limits
from twm.studio.protocol import MESSAGES

SECRET = "the secret that lies beside the run"
GENEROUS = Limits(messages_per_second=1e6, message_burst=10**6, requests_per_second=1e6, request_burst=10**6)
FIELDS = sorted({name for checks in MESSAGES.values() for name in checks})
STARTS: list[Any] = [
    REPLAY,
    {"kind": "replay", "index": 10**9},
    {"kind": "real", "seed": 3, "steps": 2, "by": "random", "beside": True},
    {"kind": "latents", "z": [[0] * 16], "a": [], "r": []},
    {"kind": "latents", "z": [[99] * 16], "a": [0], "r": []},
]
ODD: list[Any] = [
    None, True, -1, 0, 1, 2, 3, 7, 15, 16, 60, 65_535, 2**31, 2**63, 2**200, 0.5, -0.0, 1e308, "", "x",
    "../../etc/passwd", "you", "policy", "\ud800", "\x00", [], {}, [[]], [0] * 50, {"kind": None}, {"kind": "real"},
    *STARTS,
]  # fmt: skip


def a_message(rng: random.Random) -> str | bytes:
    """Some well-formed, most nearly so, a few mere noise."""
    form = rng.random()
    if form < 0.05:
        return rng.randbytes(rng.randrange(60))
    if form < 0.15:
        return "".join(chr(rng.randrange(1, 0x2FFF)) for _ in range(rng.randrange(60)))
    kind = rng.choice([*MESSAGES, "play", "act", "edit", "fly", 7])
    checks = MESSAGES.get(kind, {}) if isinstance(kind, str) else {}
    message: dict[str, Any] = {"type": kind, **{name: a_value(rng, name) for name in checks}}
    if rng.random() < 0.2:
        message[rng.choice(FIELDS)] = rng.choice(ODD)
    if message and rng.random() < 0.1:
        del message[rng.choice(list(message))]
    text = json.dumps(message)
    if form > 0.95:
        cut = rng.randrange(len(text))
        text = text[:cut] + text[cut + rng.randrange(1, 4) :]
    return text


def a_value(rng: random.Random, name: str) -> Any:
    if rng.random() < 0.25:
        return rng.choice(ODD)
    if name == "start":
        return rng.choice(STARTS[:3])
    if name == "recipe":
        recipe = {"version": 1, "env": "Catch", "checkpoint": 160, "start": REPLAY, "rows": 1, "seeds": [[0, 1]]}
        recipe |= {"temperatures": [[0, 1.0]], "actions": [[0, 1, 2]], "edits": [[1, 0, 2, 3]]}
        recipe[rng.choice(list(recipe))] = rng.choice(ODD)
        return recipe
    if name == "mode":
        return rng.choice(["you", "policy", "both"])
    return rng.randrange(5)


def talk(address: str, rng: random.Random, count: int) -> int:
    """Send ``count`` messages on one connection, reading all answers; returns how many errors were told."""
    errors = 0
    with visiting(address) as client:
        client.start()
        for i in range(count):
            client.socket.send(a_message(rng))
            if i % 25 == 24:  # let the answers in before the buffers are full
                client.send("ping", id=i)
                errors += answers(client, i)
        client.send("ping", id=0)
        errors += answers(client, 0)
    return errors


def answers(client: Any, last: int) -> int:
    errors = 0
    while (answer := client.receive()) != {"type": "pong", "id": last}:
        errors += isinstance(answer, dict) and answer["type"] == "error"
    return errors


@pytest.mark.slow
def test_ten_thousand_websocket_messages(run: Run) -> None:
    with serving([run], GENEROUS) as (studio, address):
        talk(address, random.Random(0), 500)  # first, whatever is allocated once
        before = resident_bytes()
        errors = sum(talk(address, random.Random(seed), 500) for seed in range(1, 20))
        assert errors > 1_000
        until(lambda: not studio.visits)
        assert resident_bytes() - before < 100 * 2**20  # a dream left behind at each connection would be far more
        with visiting(address) as client:
            client.start()
            assert client.ask("step")[0]["t"] == 1


PIECES = [
    "", "/", ".", "..", "%2e%2e", "..%2f", "%2F", "%5c", "\\", "//", "~", "etc", "passwd", "secret.txt", "static",
    "api", "runs", "0", "1", "-1", "films", "strip", "facts", "dreams", "film.gif", "index.html", "config.json", "%00",
    "?", "#", "?first=0&count=1", "?run=../..", "&key=x", "server.py", "checkpoints", "replay", "frames.npy", "%C0%AE",
    "é",
]  # fmt: skip


def a_path(rng: random.Random) -> str:
    return "/" + "".join(rng.choice(PIECES) + rng.choice(["/", "/", ""]) for _ in range(rng.randrange(8)))


def test_strange_requests(run_path: Path, run: Run) -> None:
    """Two thousand paths, many of them out of the run directory: nothing but what is offered comes back."""
    secret = run_path.parent / "secret.txt"
    secret.write_text(SECRET)
    offered = {path.read_bytes() for path in server.STATIC.values()}
    rng = random.Random(1)
    with serving([run], GENEROUS) as (_, address):
        host, port = address.split(":")
        for _ in range(100):
            with socket.create_connection((host, int(port)), timeout=60) as raw, raw.makefile("rb") as answers:
                for _ in range(20):
                    line = f"GET {a_path(rng).split('#')[0].replace(' ', '')} HTTP/1.1\r\nHost: {address}\r\n\r\n"
                    raw.sendall(line.encode("latin-1"))
                    status, body = read_answer(answers)
                    assert status in (200, 307, 400, 404, 405), (line, status, body)
                    assert SECRET.encode() not in body
                    assert b"root:" not in body
                    if status == 200 and body not in offered:
                        assert body[:1] in b"{[" or b'"parts"' in body, (line, body)  # facts, or a packet
                    if status == 400 and not body.startswith(b"{"):
                        break  # the server has closed the connection on what was no HTTP
        assert get(address, "/")[0] == 200


def read_answer(answers: Any) -> tuple[int, bytes]:
    status = int(answers.readline().split()[1])
    length = 0
    while (line := answers.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    return status, answers.read(length)


def test_noise_instead_of_http(served: Served) -> None:
    rng = random.Random(2)
    host, port = served.address.split(":")
    for i in range(100):
        with socket.create_connection((host, int(port)), timeout=60) as raw:
            head = [b"", b"GET ", b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"][i % 3]
            raw.sendall(head + rng.randbytes(rng.randrange(1, 400)) + b"\r\n\r\n")
    assert get(served.address, "/")[0] == 200


def test_noise_on_an_open_websocket(served: Served) -> None:
    """Frames that are none: the connection ends, the studio does not."""
    rng = random.Random(3)
    for _ in range(30):
        with visiting(served.address) as client:
            client.start()
            client.socket.socket.sendall(b"\xff" + rng.randbytes(200))  # reserved bits: no frame begins so
            with pytest.raises(ConnectionClosed):
                client.receive()
    until(lambda: not served.studio.visits)
    assert get(served.address, "/")[0] == 200
