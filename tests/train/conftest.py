"""Faults, really caused: a child process that may be killed, starved of disk, or stripped of its rights."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest


class Outcome(NamedTuple):
    text: str  # what the work returned or "ErrorType: message"; empty if the child was killed first
    signal: int  # what killed it, or 0


def run_in_child(work: Callable[[], object]) -> Outcome:
    """Run ``work`` in a forked process: no new interpreter, so dozens of these take a second."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            try:
                text = str(work())
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writer, text.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return Outcome(text, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


@pytest.fixture
def in_child() -> Callable[[Callable[[], object]], Outcome]:
    return run_in_child


@pytest.fixture
def killed_at() -> Callable[[int, Callable[[], object]], Outcome]:
    """Run work in a child that is killed by SIGKILL just before its n-th operation on a file or directory.

    The interpreter announces each such operation (audit events), so no function has to be replaced.
    """
    watched = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "os.listdir", "os.scandir"}

    def kill_at(n: int, work: Callable[[], object]) -> Outcome:
        def armed() -> object:
            left = n

            def hook(event: str, arguments: object) -> None:
                nonlocal left
                if event in watched:
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left -= 1

            sys.addaudithook(hook)
            return work()

        return run_in_child(armed)

    return kill_at


@pytest.fixture
def with_file_limit() -> Callable[[int, Callable[[], object]], Outcome]:
    """Run work in a child whose files cannot grow beyond so many bytes."""

    def limited(size: int, work: Callable[[], object]) -> Outcome:
        def starved() -> object:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            return work()

        return run_in_child(starved)

    return limited


@pytest.fixture
def on_small_disk(tmp_path: Path) -> Callable[[int, Callable[[Path], object]], Outcome]:
    """Run work on a file system of so many bytes, which only the child sees. Skips where mounting is not allowed."""
    place = tmp_path / "small-disk"
    place.mkdir()

    def run(size: int, work: Callable[[Path], object]) -> Outcome:
        def mounted() -> object:
            libc = ctypes.CDLL(None, use_errno=True)
            new_namespace, private_recursive = 0x20000, 0x44000
            if (
                libc.unshare(new_namespace)
                or libc.mount(b"none", b"/", None, private_recursive, None)
                or libc.mount(b"tmpfs", bytes(place), b"tmpfs", 0, f"size={size}".encode())
            ):
                return "cannot mount"
            return work(place)

        outcome = run_in_child(mounted)
        if outcome.text == "cannot mount":
            pytest.skip("needs the right to mount a small file system")
        return outcome

    return run


@pytest.fixture
def without_rights() -> Callable[[Path, Callable[[], object]], Outcome]:
    """Run work inside a directory (paths relative to it) as an ordinary user: for root, modes forbid nothing."""

    def run(directory: Path, work: Callable[[], object]) -> Outcome:
        def stripped() -> object:
            os.chdir(directory)
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            return work()

        return run_in_child(stripped)

    return run
