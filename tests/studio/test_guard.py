"""Who may ask: names, origins, tokens, methods, rates."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from twm.studio.guard import LOOPBACK, Bucket, Guard, host_name


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


def guard(**options: Any) -> Guard:
    defaults: dict[str, Any] = {"hosts": LOOPBACK, "any_address": False, "token": None, "rate": 1.0, "burst": 50}
    return Guard(application, **{**defaults, **options})


def ask(
    guarded: Guard, headers: list[tuple[str, str]], *, kind: str = "http", method: str = "GET", query: str = ""
) -> tuple[int | str, dict[str, str]]:
    """Status (or what became of the websocket) and headers of the answer."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "method": method,
        "path": "/",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 8420),
    }
    asyncio.run(guarded(scope, None, send))  # type: ignore[arg-type]
    answer = {name.decode(): value.decode() for name, value in sent[0].get("headers", [])}
    return sent[0].get("status", sent[0]["type"]), answer


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8420", True),
        ("localhost:9999", True),  # the near end of an ssh tunnel may have another port
        ("LOCALHOST", True),
        ("[::1]:8420", True),
        ("evil.example:8420", False),  # DNS rebinding
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1:8420@evil.example", False),
        ("192.168.0.7:8420", False),
        ("", False),
        ("[", False),
    ],
)
def test_only_own_names(host: str, allowed: bool) -> None:
    assert ask(guard(), [("host", host)])[0] == (200 if allowed else 421)
    websocket = ask(guard(), [("host", host)], kind="websocket")[0]
    assert websocket == ("websocket.accept" if allowed else "websocket.close")


def test_one_host_header_exactly() -> None:
    assert ask(guard(), [])[0] == 421
    assert ask(guard(), [("host", "localhost"), ("host", "localhost")])[0] == 421


def test_beyond_this_machine_addresses_are_names_too() -> None:
    open_to_all = guard(any_address=True, hosts=LOOPBACK | {"box.lan"}, token="t")
    bearer = ("authorization", "Bearer t")
    for host, status in (("192.168.0.7:1", 200), ("box.lan", 200), ("[fe80::1]:80", 200), ("evil.example", 421)):
        assert ask(open_to_all, [("host", host), bearer])[0] == status


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ([("origin", "http://localhost:8420")], True),
        ([("origin", "https://localhost:8420")], True),  # behind a proxy that encrypts
        ([("origin", "http://localhost:3000")], False),  # another server on this machine
        ([("origin", "http://evil.example")], False),
        ([("origin", "null")], False),
        ([("origin", "")], False),
        ([("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")], True),
        ([("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate")], True),
        ([("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")], False),
        ([("sec-fetch-site", "same-site"), ("sec-fetch-mode", "websocket")], False),
        ([], True),  # no browser
    ],
)
def test_only_own_pages(headers: list[tuple[str, str]], allowed: bool) -> None:
    host = ("host", "localhost:8420")
    assert ask(guard(), [host, *headers])[0] == (200 if allowed else 403)
    websocket = ask(guard(), [host, *headers], kind="websocket")[0]
    assert websocket == ("websocket.accept" if allowed else "websocket.close")


def test_a_link_elsewhere_may_lead_here_but_not_embed() -> None:
    host = ("host", "localhost:8420")
    arriving = [host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]
    status, headers = ask(guard(), arriving)
    assert status == 200
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-content-type-options"] == "nosniff"
    assert ask(guard(), arriving, kind="websocket")[0] == "websocket.close"


def test_only_reading() -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        assert ask(guard(), [("host", "localhost")], method=method)[0] == 405
    assert ask(guard(), [("host", "localhost")], method="HEAD")[0] == 200


def test_the_token_comes_once_in_the_address_then_in_a_cookie() -> None:
    closed, host = guard(token="s3cret"), ("host", "localhost")
    assert ask(closed, [host])[0] == 401
    assert ask(closed, [host], query="token=wrong")[0] == 401
    assert ask(closed, [host], query="token=")[0] == 401
    status, headers = ask(closed, [host], query="token=s3cret&run=1")
    assert (status, headers["location"]) == (303, "/?run=1")
    assert headers["set-cookie"] == "twm-studio-8420=s3cret; Path=/; HttpOnly; SameSite=Strict"
    assert ask(closed, [host, ("cookie", "other=1; twm-studio-8420=s3cret")])[0] == 200
    assert ask(closed, [host, ("cookie", "twm-studio-8420=s3cre")])[0] == 401
    assert ask(closed, [host, ("cookie", "twm-studio-9999=s3cret")])[0] == 401
    assert ask(closed, [host, ("cookie", 'x="\\999; twm-studio-8420=')])[0] == 401
    assert ask(closed, [host, ("authorization", "Bearer s3cret")])[0] == 200
    assert ask(closed, [host, ("authorization", "Bearer \x00é")])[0] == 401


def test_websockets_need_the_token_too() -> None:
    closed, host = guard(token="s3cret"), ("host", "localhost")
    assert ask(closed, [host], kind="websocket")[0] == "websocket.close"
    assert ask(closed, [host], kind="websocket", query="token=s3cret")[0] == "websocket.close"  # no cookie, no entry
    assert ask(closed, [host, ("cookie", "twm-studio-8420=s3cret")], kind="websocket")[0] == "websocket.accept"


def test_rates() -> None:
    few = guard(rate=0.001, burst=3)
    assert [ask(few, [("host", "localhost")])[0] for _ in range(5)] == [200, 200, 200, 429, 429]


def test_a_bucket_by_hand() -> None:
    """Two a second, three at once."""
    bucket = Bucket(2.0, 3, now=0.0)
    assert [bucket.wait(0.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 1.0]
    assert bucket.wait(1.0) == 0.5  # -2 + 2 - 1 = -1
    strict = Bucket(2.0, 1, now=0.0)
    assert [strict.take(0.0), strict.take(0.0), strict.take(0.5), strict.take(0.5)] == [True, False, True, False]


def test_host_names() -> None:
    assert host_name("[::1]:80") == "::1"
    assert host_name("a.b:80") == "a.b"
    assert host_name("a.b") == "a.b"
    assert host_name("::1") == ":"  # not a Host header; a name nobody has
