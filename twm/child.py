"""Child processes that serve their parent through standard input and output: environments, partners in training.

A plain process that imports what it needs: one of the multiprocessing module would import the user's script again, or
copy a process with running torch threads. It ends when its standard input does, so it never outlives its parent.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any


class ChildLost(RuntimeError):
    """A child ended without being told to: killed, perhaps for want of memory."""


# Signals that reach a whole group are the parent's to answer: it may want to save, with its children, before it ends.
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)"

PATIENCE = 5e-4  # seconds to wait awake


def start(module: str, **options: Any) -> subprocess.Popen[bytes]:
    """A process that calls ``main`` of ``module``, finds modules where this one does, and waits for requests."""
    return subprocess.Popen(
        [sys.executable, "-c", f"{DEAF}; from {module} import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        **options,
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Let it end, or end it."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # a request that a dead child never read is still to be flushed
                stream.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def shared_file() -> Iterator[int]:
    """A file without a name, in memory where the system has such files: mapped by a child that is started with
    ``pass_fds``, it is memory that both see, also when it is closed again."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("twm")
    else:
        with tempfile.TemporaryFile() as named:
            file = os.dup(named.fileno())
    try:
        yield file
    finally:
        os.close(file)


# Whoever has work to do on this core goes first.
_let_others = getattr(os, "sched_yield", lambda: time.sleep(0))


def read_byte(stream: IO[bytes]) -> bytes:
    """The next byte, or none at the end of the stream.

    Waits awake for a moment before it sleeps, for to be woken takes time: environments in lock-step do 4 % more steps
    (docs/performance.md).
    """
    ready = select.poll()
    ready.register(stream, select.POLLIN)
    patience = time.monotonic() + PATIENCE
    while not ready.poll(0) and time.monotonic() < patience:
        _let_others()
    return stream.read(1)


def pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The child's end: requests and replies. What libraries print goes to standard error, not into the replies."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return sys.stdin.buffer, replies
