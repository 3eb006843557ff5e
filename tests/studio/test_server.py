"""The real server: pages, facts, dreams over websockets; limits, errors, connections that break."""

from __future__ import annotations

import gc
import json
import shutil
import socket
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studio.clients import get, get_json, visiting
from studio.serving import Served, serving, until
from websockets.exceptions import ConnectionClosed, InvalidStatus

from twm.studio import server
from twm.studio.library import Run
from twm.studio.limits import MAX_MESSAGE, Limits
from twm.studio.protocol import unpack

# --------------------------------------------------------------------------------------------------
# Pages and facts


def test_the_page_and_its_files(served: Served) -> None:
    status, body, headers = get(served.address, "/")
    assert status == 200
    assert b"TWM studio" in body
    assert "script-src 'self'" in headers["content-security-policy"]
    names = set(server.STATIC)
    assert {"index.html", "main.js", "base.css", "icon.svg"} <= names
    for name in names:
        status, body, headers = get(served.address, f"/static/{name}")
        assert (status, len(body)) == (200, server.STATIC[name].stat().st_size)
        assert headers["x-content-type-options"] == "nosniff"
    kinds = {"main.js": "text/javascript", "base.css": "text/css", "icon.svg": "image/svg+xml"}
    for name, kind in kinds.items():
        assert get(served.address, f"/static/{name}")[2]["content-type"].startswith(kind)


def test_small_packets_do_not_wait_for_each_other(run: Run) -> None:
    """Without TCP_NODELAY, which connections inherit from the listener, every answer in two packets takes 40 ms."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.make_server(server.Studio([run]), listener, token=None)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_nothing_is_loaded_from_elsewhere() -> None:
    for path in server.STATIC.values():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/%2e%2e/config.py",
        "/static//etc/passwd",
        "/static/index.html/../../limits.py",
        "/static/",
        "/static",
        "/api/runs/0/films/0",
        "/api/runs/0/films/-1",
        "/api/runs/0/films/..%2f..%2fconfig.json",
        "/api/runs/1/facts",
        "/api/runs/-1/facts",
        "/api/runs/0/../../../etc/passwd",
        "/api/dreams/nobody/film.gif",
        "/api/dream",
        "//etc/passwd",
        "/config.json",
        "/docs",
        "/openapi.json",
    ],
)
def test_what_is_not_offered_does_not_exist(served: Served, path: str) -> None:
    status, body, _ = get(served.address, path)
    assert status in (404, 405), body


def test_facts_of_a_run(served: Served, run: Run) -> None:
    (summary,) = get_json(served.address, "/api/runs")
    assert (summary["name"], summary["env"], summary["interactions"]) == ("tiny", "Catch", 160)
    facts = get_json(served.address, "/api/runs/0/facts")
    assert facts["evaluation"]["optimal_return"] == 5.0
    assert len(facts["options"]) > 50
    curves = get_json(served.address, "/api/runs/0/curves?key=loss/decoder&key=nothing")
    assert curves["curves"]["nothing"] == []
    assert len(curves["curves"]["loss/decoder"]) > 0
    assert get_json(served.address, "/api/runs/0/visits")["entries"] == 160
    assert get_json(served.address, "/api/runs/0/episodes")[0]["first"] == 156
    _, body, _ = get(served.address, "/api/runs/0/strip?first=10&stride=2&count=3")
    header, parts = unpack(body)
    assert header["indices"] == [10, 12, 14]
    assert parts["frames"].shape == (3, 1, 16, 16)


@pytest.mark.parametrize("query", ["first=-1", "first=x", "first=1e3", "count=0", "count=301", "stride=0", "first=²"])
def test_bad_queries_say_what_was_expected(served: Served, query: str) -> None:
    status, body, _ = get(served.address, f"/api/runs/0/strip?{query.replace('²', '%C2%B2')}")
    assert status == 400
    assert "expected a whole number" in json.loads(body)["error"]


def test_films_of_the_run_directory(run_path: Path, tmp_path: Path) -> None:
    import cv2

    shutil.copytree(run_path, tmp_path / "run")
    writer = cv2.VideoWriter(str(tmp_path / "run" / "a.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 15, (64, 64))
    for _ in range(7):
        writer.write(np.full((64, 64, 3), 99, np.uint8))
    writer.release()
    with serving([Run(tmp_path / "run", device="cpu")]) as (_, address):
        (film,) = get_json(address, "/api/runs/0/facts")["films"]
        assert film["name"] == "a.mp4"
        header, parts = unpack(get(address, "/api/runs/0/films/0")[1])
        assert header["name"] == "a.mp4"
        assert parts["frames"].shape == (7, 3, 64, 64)
        _, body, headers = get(address, "/api/runs/0/films/0?file")
        assert body == (tmp_path / "run" / "a.mp4").read_bytes()
        assert headers["content-type"] == "video/mp4"


# --------------------------------------------------------------------------------------------------
# Dreams


def test_a_dream_plays_at_its_pace(served: Served) -> None:
    with visiting(served.address) as client:
        client.start()
        client.send("stop_at_end", on=False)
        client.send("control", mode="policy")
        client.send("speed", fps=20)
        client.send("play")
        times = []
        for t in range(1, 13):
            header, _ = client.receive()
            assert header["t"] == t
            times.append(time.monotonic())
        assert times[-1] - times[1] > 10 / 20 * 0.7  # not faster than asked for
        client.send("pause")
        while client.receive() != {"type": "paused"}:
            pass
        client.send("ping", id=1)
        late = []
        while not (late and late[-1] == {"type": "pong", "id": 1}):
            late.append(client.receive())
        assert len(late) <= 3  # at most the step that was being made


def test_a_bad_message_gets_an_answer_and_the_session_lives(served: Served) -> None:
    with visiting(served.address) as client:
        client.start()
        for bad in ("", "{", "[]", '{"type": "fly"}', '{"type": "seek", "t": 99}', "\x00"):
            client.socket.send(bad)
            assert client.receive()["type"] == "error"
        client.socket.send(b"\xff\x00")
        assert client.receive()["message"] == "expected a text message, but came bytes"
        assert client.ask("step")[0]["t"] == 1


def test_a_failure_inside_gets_an_answer_and_the_session_lives(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by hand")

    with visiting(served.address) as client:
        client.start()
        with monkeypatch.context() as patch:
            patch.setattr("twm.studio.dream.Dream.step", fail)
            assert client.ask("step") == {"type": "error", "message": "that failed: by hand"}
            client.send("play")
            assert client.receive() == {"type": "error", "message": "that failed: by hand"}
        assert client.ask("step")[0]["t"] == 1
    assert "a dream failed" in caplog.text  # the terminal has the traceback


def test_films_of_dreams(served: Served) -> None:
    with visiting(served.address) as client:
        client.start()
        for _ in range(3):
            client.ask("step")
        address = f"/api/dreams/{client.hello['session']}/film"
        status, body, headers = get(served.address, f"{address}.gif?first=1&last=2")
        assert (status, body[:6], headers["content-type"]) == (200, b"GIF89a", "image/gif")
        assert headers["content-disposition"] == 'attachment; filename="dream.gif"'
        assert get(served.address, f"{address}.gif?last=9")[0] == 400
        assert get(served.address, f"{address}.exe")[0] == 404
    assert get(served.address, f"{address}.gif")[0] == 404  # gone with its session


def test_a_closed_connection_frees_its_dream(served: Served) -> None:
    with visiting(served.address) as client:
        client.start()
        dream = weakref.ref(served.studio.visits[client.hello["session"]].session.dream)  # type: ignore[type-var]
        client.send("play")
        client.receive()
    until(lambda: not served.studio.visits)
    until(lambda: gc.collect() >= 0 and dream() is None)


def test_a_broken_connection_frees_its_dream(served: Served) -> None:
    """The cable is pulled: no goodbye, in the middle of play."""
    with visiting(served.address) as client:
        client.start(rows=4)
        client.send("stop_at_end", on=False)
        client.send("play")
        client.receive()
        assert len(served.studio.visits) == 1
        raw = client.socket.socket
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        raw.shutdown(socket.SHUT_RDWR)
        raw.close()
        until(lambda: not served.studio.visits)


def test_new_checkpoints_are_announced_and_used(
    run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "POLL", 0.05)
    shutil.copytree(run_path, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    shutil.move(checkpoints, tmp_path / "aside")
    checkpoints.mkdir()
    with serving([Run(tmp_path / "run", device="cpu")]) as (_, address), visiting(address) as client:
        assert client.hello["ready"] is False
        assert "no checkpoint yet" in client.start()["message"]
        names = sorted(path.name for path in (tmp_path / "aside").iterdir())
        shutil.move(tmp_path / "aside" / names[0], checkpoints / names[0])
        hello = client.receive()
        assert (hello["ready"], hello["checkpoint"]) == (True, int(names[0][5:]))
        assert client.start()[0]["checkpoint"] == int(names[0][5:])
        shutil.move(tmp_path / "aside" / names[-1], checkpoints / names[-1])
        assert client.receive() == {"type": "checkpoint", "step": 160, "replay": 160}
        assert client.ask("step")[0]["checkpoint"] == int(names[0][5:])  # a dream keeps its weights
        assert client.ask("again")[0]["checkpoint"] == 160


def test_a_run_that_cannot_be_read_does_not_stop_the_others(
    run: Run, run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its visitor is told why, the terminal once; the watch for new checkpoints goes on."""
    monkeypatch.setattr(server, "POLL", 0.05)
    shutil.copytree(run_path, tmp_path / "bad")
    for path in (tmp_path / "bad" / "checkpoints").iterdir():
        (path / "state.json").write_text("{")
    with serving([Run(tmp_path / "bad", device="cpu"), run]) as (_, address):
        with visiting(address) as client:
            assert "no usable checkpoint" in client.hello["message"]
            until(lambda: "no usable checkpoint" in caplog.text)
            time.sleep(0.3)
            assert caplog.text.count("no usable checkpoint") == 1
            (path,) = [path for path in run_path.joinpath("checkpoints").iterdir() if path.name.endswith("160")]
            shutil.rmtree(tmp_path / "bad" / "checkpoints" / path.name)
            shutil.copytree(path, tmp_path / "bad" / "checkpoints" / path.name)
            assert client.receive()["checkpoint"] == 160
        with visiting(address, "/api/dream?run=1") as client:
            assert client.start()[0]["t"] == 0


# --------------------------------------------------------------------------------------------------
# Limits


def test_no_more_sessions_than_places(run: Run) -> None:
    with serving([run], Limits(sessions=2)) as (studio, address):
        with visiting(address), visiting(address), visiting(address) as third:
            assert third.hello == {"type": "error", "message": "all 2 places are taken: try again later"}
            with pytest.raises(ConnectionClosed):
                third.receive()
        until(lambda: not studio.visits)
        with visiting(address) as client:
            assert client.hello["ready"] is True


def test_who_sends_too_fast_waits(run: Run) -> None:
    """Ten a second, five at once: the sixth to fifteenth message take a second."""
    with serving([run], Limits(messages_per_second=10, message_burst=5)) as (_, address), visiting(address) as client:
        begin = time.monotonic()
        for i in range(15):
            client.send("ping", id=i)
        for i in range(15):
            assert client.receive() == {"type": "pong", "id": i}
        assert time.monotonic() - begin > 0.9


def test_requests_have_a_rate_too(run: Run) -> None:
    with serving([run], Limits(requests_per_second=0.01, request_burst=3)) as (_, address):
        assert [get(address, "/static/icon.svg")[0] for _ in range(4)] == [200, 200, 200, 429]


def test_a_message_too_long_ends_the_connection_but_not_the_studio(served: Served) -> None:
    with visiting(served.address) as client:
        client.socket.send("x" * (MAX_MESSAGE + 1))
        with pytest.raises(ConnectionClosed) as closed:
            client.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
    with visiting(served.address) as client:
        assert client.hello["ready"] is True


def test_headers_have_a_limit(served: Served) -> None:
    host, port = served.address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000)
        assert b" 400 " in raw.recv(100)


def test_other_sites_cannot_connect(served: Served) -> None:
    host, port = served.address.split(":")
    for name, headers in ((host, {"Origin": "http://evil.example"}), ("evil.example", {})):
        raw = socket.create_connection((host, int(port)), timeout=30)
        with pytest.raises(InvalidStatus) as refused, visiting(f"{name}:{port}", additional_headers=headers, sock=raw):
            pass
        assert refused.value.response.status_code == 403
    with visiting(served.address, origin=f"http://{served.address}") as client:  # type: ignore[arg-type]
        assert client.hello["ready"] is True
    assert get(served.address, "/", {"Host": "evil.example"})[0] == 421
    assert get(served.address, "/api/runs", {"Origin": "http://evil.example"})[0] == 403
    assert get(served.address, "/api/runs", method="POST")[0] == 405


def test_beyond_this_machine_a_token_is_needed(run: Run) -> None:
    with serving([run], token="s3cret", host="0.0.0.0") as (_, address):
        assert get(address, "/")[0] == 401
        assert get(address, "/api/runs")[0] == 401
        with pytest.raises(InvalidStatus), visiting(address):
            pass
        status, _, headers = get(address, "/?token=s3cret")
        assert status == 303
        cookie = headers["set-cookie"].partition(";")[0]
        assert get(address, "/", {"Cookie": cookie})[0] == 200
        with visiting(address, additional_headers={"Cookie": cookie}) as client:
            assert client.hello["ready"] is True
