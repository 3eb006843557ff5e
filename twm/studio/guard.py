"""Who may ask the studio anything. Plain ASGI around the application; every request passes here first.

- **Host**: only names that this machine really has. A page of another site that points its own name at 127.0.0.1
  (DNS rebinding) sends that name, and is refused. Addresses are no names: nobody can rebind them.
- **Origin**: where a browser says that the request comes from another site, it is refused, websockets included.
- **Token**: asked for when the studio listens beyond this machine. It comes once in the address, then in a cookie.
- **Methods and rates**: only reading, and only so often.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS = {
    # Nothing from elsewhere, nothing inline, in no frame of another page.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_ADDRESSES = 1_024  # clients whose rates are remembered


class Refusal(NamedTuple):
    status: int
    reason: str


class Bucket:
    """``rate`` a second on average, ``burst`` at once."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._since = float(burst), now

    def wait(self, now: float) -> float:
        """Take one; returns the seconds until it is due, 0 if at once."""
        self._left = min(self._burst, self._left + (now - self._since) * self._rate) - 1
        self._since = now
        return max(0.0, -self._left / self._rate)

    def take(self, now: float) -> bool:
        """Take one if there is one."""
        if self.wait(now) == 0:
            return True
        self._left += 1
        return False


class Guard:
    def __init__(
        self, app: App, *, hosts: frozenset[str], any_address: bool, token: str | None, rate: float, burst: int
    ) -> None:
        """``hosts``: names to be called by; ``any_address``: any IP address as well."""
        self._app, self._hosts, self._any_address, self._token = app, hosts, any_address, token
        self._rate, self._burst = rate, burst
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        refusal = self._judge(scope, headers)
        if refusal is None and self._token is not None and not self._knows_token(scope, headers):
            if scope["type"] == "http" and self._token_in_address(scope):
                await _respond(send, 303, "", self._welcome(scope))
                return
            refusal = Refusal(401, "This studio asks for a token: open the whole address that twm studio printed.")
        if refusal is not None:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": refusal.reason})
            else:
                await _respond(send, refusal.status, refusal.reason)
            return
        await self._app(scope, receive, _with_headers(send))

    def _judge(self, scope: Scope, headers: dict[str, list[str]]) -> Refusal | None:
        if not self._within_rate(scope):
            return Refusal(429, "Too many requests: slow down.")
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._is_own(host_name(hosts[0])):
            return Refusal(421, "This studio does not go by that name: open it by the address that twm studio printed.")
        for origin in headers.get("origin", []):
            if origin.lower() not in (f"http://{hosts[0].lower()}", f"https://{hosts[0].lower()}"):
                return Refusal(403, "Requests from other sites are refused.")
        site, mode = (headers.get(f"sec-fetch-{name}", [""])[0] for name in ("site", "mode"))
        if site in ("cross-site", "same-site") and (mode != "navigate" or scope["type"] == "websocket"):
            return Refusal(403, "Requests from other sites are refused.")
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD"):
            return Refusal(405, "Only GET and HEAD are answered.")
        return None

    def _is_own(self, name: str) -> bool:
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._any_address

    def _within_rate(self, scope: Scope) -> bool:
        now = time.monotonic()
        client = scope.get("client") or ("", 0)
        bucket = self._buckets.pop(client[0], None) or Bucket(self._rate, self._burst, now)
        self._buckets[client[0]] = bucket
        if len(self._buckets) > _ADDRESSES:
            self._buckets.popitem(last=False)
        return bucket.take(now)

    # ----------------------------------------------------------------------------------------------
    # The token

    def _cookie(self, scope: Scope) -> str:
        """Cookies are shared by all ports of a host: the port is part of the name."""
        return f"twm-studio-{(scope.get('server') or ('', 0))[1]}"

    def _knows_token(self, scope: Scope, headers: dict[str, list[str]]) -> bool:
        given = [value.removeprefix("Bearer ") for value in headers.get("authorization", [])]
        for line in headers.get("cookie", []):
            try:
                morsel = SimpleCookie(line).get(self._cookie(scope))
            except CookieError:
                continue
            given += [] if morsel is None else [morsel.value]
        return any(self._is_token(value) for value in given)

    def _token_in_address(self, scope: Scope) -> bool:
        return any(key == "token" and self._is_token(value) for key, value in _query(scope))

    def _is_token(self, value: str) -> bool:
        return self._token is not None and secrets.compare_digest(value.encode(), self._token.encode())

    def _welcome(self, scope: Scope) -> dict[str, str]:
        """Keep the token in a cookie and out of the address, the history and every screenshot."""
        rest = urlencode([(key, value) for key, value in _query(scope) if key != "token"])
        cookie = f"{self._cookie(scope)}={self._token}; Path=/; HttpOnly; SameSite=Strict"
        return {"location": f"/?{rest}" if rest else "/", "set-cookie": cookie}


def host_name(host: str) -> str:
    """The name in a Host header, without its port: ``[::1]:8420`` is ``::1``."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _query(scope: Scope) -> list[tuple[str, str]]:
    try:
        return parse_qsl(scope["query_string"].decode("latin-1"), max_num_fields=20)
    except ValueError:
        return []


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", [])}
            extra = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in present]
            message = {**message, "headers": [*message.get("headers", []), *extra]}
        await send(message)

    return sending


async def _respond(send: Send, status: int, text: str, headers: dict[str, str] | None = None) -> None:
    body = text.encode()
    fields = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **(headers or {})}
    sending = _with_headers(send)
    await sending(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in fields.items()],
        }
    )
    await sending({"type": "http.response.body", "body": body})
