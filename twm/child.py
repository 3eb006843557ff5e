"""Child processes that serve their parent through standard input and output: environments, partners in training.

A plain process that imports what it needs: one of the multiprocessing module would import the user's script again, or
copy a process with running torch threads. It ends when its standard input does, so it never outlives its parent.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import IO, Any


class ChildLost(RuntimeError):
    """A child ended without being told to: killed, perhaps for want of memory."""


# Signals that reach a whole group are the parent's to answer: it may want to save, with its children, before it ends.
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)"


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


def pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The child's end: requests and replies. What libraries print goes to standard error, not into the replies."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return sys.stdin.buffer, replies
