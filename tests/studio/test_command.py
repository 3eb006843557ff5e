"""``twm studio`` as it is called."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from studio.clients import get

from twm.cli import main
from twm.commands.studio import greeting, is_loopback, listen, run_names
from twm.config import ConfigError


def test_it_prints_its_address_serves_and_stops(run_path: Path) -> None:
    command = [sys.executable, "-m", "twm.cli", "studio", str(run_path), "--port", "0", "--token"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(r"studio  http://(127\.0\.0\.1:\d+)/\?token=([\w-]{32})\n", line)
        assert match, line
        assert get(match[1], "/")[0] == 401
        assert get(match[1], "/", {"Authorization": f"Bearer {match[2]}"})[0] == 200
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode in (0, 130), error
    assert "Traceback" not in error


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "twm.cli", "studio", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 1
    assert "is not a run directory" in done.stderr


def test_a_device_that_is_not_there_is_refused(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["studio", str(run_path), "--device", "foo"]) == 1
    assert capsys.readouterr().err.startswith("error: device 'foo' cannot be used here: expected auto, cpu, cuda")


def test_ports() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is taken: give another one with --port"):
            listen("127.0.0.1", port)
    with listen("127.0.0.1", None) as first, listen("127.0.0.1", None) as second:
        assert first.getsockname()[1] < second.getsockname()[1] < 8430
    with pytest.raises(ConfigError, match="cannot listen on"):
        listen("203.0.113.1", 0)


def test_only_this_machine_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.0.1", "::1", "localhost", "LOCALHOST")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "localhost.example.org", "")))


def test_runs_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a/seed0", "b/seed0", "b/seed1")]
    assert run_names(paths[1:]) == ["seed0", "seed1"]
    assert run_names(paths) == ["a/seed0", "b/seed0", "b/seed1"]
    assert run_names([paths[0]] * 2) == ["seed0 1", "seed0 2"]


def test_greetings() -> None:
    assert greeting("127.0.0.1", 8420, None).startswith("studio  http://127.0.0.1:8420/\n")
    assert "ssh -L 8420:127.0.0.1:8420" in greeting("127.0.0.1", 8420, None)
    assert greeting("::1", 1, None).startswith("studio  http://[::1]:1/\n")
    assert greeting("0.0.0.0", 1, "t").startswith(f"studio  http://{socket.gethostname()}:1/?token=t\n")
    assert "not encrypted" in greeting("0.0.0.0", 1, "t")
