"""Clients of the studio, as plain as can be."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

from twm.studio.protocol import unpack

REPLAY = {"kind": "replay", "index": 60}


def get(address: str, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> tuple[int, bytes, Any]:
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request(method, path, headers=headers or {})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body, response.headers


def get_json(address: str, path: str) -> Any:
    status, body, _ = get(address, path)
    assert status == 200, body
    return json.loads(body)


class Client:
    """A websocket that speaks the protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.hello = self.receive()

    def send(self, kind: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": kind, **fields}))

    def receive(self) -> Any:
        message = self.socket.recv(60)
        return unpack(message) if isinstance(message, bytes) else json.loads(message)

    def ask(self, kind: str, **fields: Any) -> Any:
        self.send(kind, **fields)
        return self.receive()

    def start(self, rows: int = 1) -> Any:
        return self.ask("start", start=REPLAY, rows=rows, seed=1)


@contextmanager
def visiting(address: str, path: str = "/api/dream", **options: Any) -> Iterator[Client]:
    with connect(f"ws://{address}{path}", max_size=None, open_timeout=60, proxy=None, **options) as websocket:
        yield Client(websocket)
