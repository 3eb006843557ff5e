"""A tiny configuration, and a real server in a thread."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from twm.config import Config, preset, with_options
from twm.studio.library import Run
from twm.studio.limits import Limits
from twm.studio.server import Studio, make_server

TINY = {
    "train.interactions": 160,
    "train.prefill": 120,
    "train.samples": 7_000,
    "train.pretrain_samples": 3_000,
    "train.eval_every": 0,
    "train.final_episodes": 2,
    "train.log_every": 10,
    "train.checkpoint_every": 80,
    "threads": 1,
}
"""Enough for every file of a run to exist; it need not have learned anything."""


def tiny_config(**options: object) -> Config:
    return with_options(preset("tiny"), {**TINY, **options})


class Served(NamedTuple):
    studio: Studio
    address: str  # 127.0.0.1:port


@contextmanager
def serving(
    runs: list[Run], limits: Limits | None = None, *, token: str | None = None, host: str = "127.0.0.1"
) -> Iterator[Served]:
    """A real server in a thread, until the block ends."""
    studio = Studio(runs, limits)
    with socket.create_server((host, 0)) as listener:
        server = make_server(studio, listener, token=token)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until(lambda: server.started)
            yield Served(studio, f"127.0.0.1:{listener.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for what another thread or process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.01)


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
