"""Environments in another process, for :class:`twm.envs.vector.VectorEnv`.

Threads cannot share the work: ale-py holds the interpreter lock while it emulates. So a worker is a child process
(:mod:`twm.child`) that makes its own environments from their recipes and is told what to do through a pipe.

    recipes     one line of JSON
    request     header, rows x int64 (seeds or actions), rows x uint8 (which rows to act on)
    reply       0, rows x 4 float32 (reward, terminated, truncated, game_over), then the observations acted on;
                or 1, the length of a message, and the message
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from twm import child
from twm.config import EnvConfig
from twm.envs.base import Env, look_later
from twm.types import FrameArray

RESET, STEP = 0, 1
HEADER = struct.Struct("<BI")  # request: command, rows; reply: status, length of a message


def act_on(
    envs: Sequence[Env],
    command: int,
    values: npt.NDArray[np.int64],
    active: npt.NDArray[np.bool_],
    observations: FrameArray,
    outcomes: npt.NDArray[np.float32],
) -> None:
    """Reset or step the active rows; what comes of it is written into ``observations`` and ``outcomes``."""
    outcomes[:] = 0
    rows = np.flatnonzero(active).tolist()
    if command == STEP and look_later(envs):
        for row in rows:
            outcomes[row] = envs[row].play(int(values[row]))
        for row in rows:
            observations[row] = envs[row].observe()
        return
    for row in rows:
        if command == RESET:
            observations[row] = envs[row].reset(seed=int(values[row]))
        else:
            step = envs[row].step(int(values[row]))
            observations[row], outcomes[row] = step.observation, step[1:]


class Worker:
    """The parent's end. Sending and receiving are apart, so that all workers compute at the same time."""

    def __init__(self, recipes: Sequence[Mapping[str, Any]]) -> None:
        self._process = child.start("twm.envs.worker")
        if self._process.stdout is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
            # A whole reply fits, and the worker need not wait for its reader. Many workers may use up what a user has.
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, 1 << 20)
        self._write([json.dumps(list(recipes)).encode() + b"\n"])

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: int, values: npt.NDArray[np.int64], active: npt.NDArray[np.bool_]) -> None:
        self._write([HEADER.pack(command, len(values)), values.tobytes(), active.tobytes()])

    def receive(
        self, active: npt.NDArray[np.bool_], observations: FrameArray, outcomes: npt.NDArray[np.float32]
    ) -> None:
        """Wait for the reply to the last request and write it into the rows given."""
        status, length = HEADER.unpack(self._read(bytearray(HEADER.size)))
        if status:
            raise RuntimeError(f"environment worker: {self._read(bytearray(length)).decode()}")
        outcomes[:] = np.frombuffer(self._read(bytearray(outcomes.size * 4)), np.float32).reshape(outcomes.shape)
        for row in np.flatnonzero(active):
            self._read(memoryview(observations[row]).cast("B"))

    def close(self) -> None:
        child.stop(self._process)

    def _write(self, parts: list[bytes]) -> None:
        try:
            self._stream(self._process.stdin).write(b"".join(parts))
            self._stream(self._process.stdin).flush()
        except OSError as error:
            raise self._ended() from error

    def _read(self, buffer: Any) -> Any:
        view, stream = memoryview(buffer), self._stream(self._process.stdout)
        while view:
            count = stream.readinto(view)  # type: ignore[attr-defined]
            if not count:
                raise self._ended()
            view = view[count:]
        return buffer

    def _stream(self, stream: IO[bytes] | None) -> IO[bytes]:
        if stream is None or stream.closed:
            raise self._ended()
        return stream

    def _ended(self) -> child.ChildLost:
        return child.ChildLost(f"environment worker {self.pid} has ended (exit code {self._process.poll()})")


def main() -> None:
    """The child's end: serve requests until there are none."""
    requests, replies = child.pipes()
    try:
        _serve(requests, replies)
    except BrokenPipeError:
        os._exit(0)  # the parent is gone: nobody to tell, nothing to flush
    except Exception as error:
        message = f"{type(error).__name__}: {error}".encode()
        replies.write(HEADER.pack(1, len(message)) + message)
        replies.flush()


def _serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    import cv2

    from twm.envs import make_env

    cv2.setNumThreads(1)
    recipes = [{**recipe, "options": EnvConfig(**recipe["options"])} for recipe in json.loads(requests.readline())]
    envs = [make_env(**recipe) for recipe in recipes]
    spec = envs[0].spec
    every = np.zeros((len(envs), *spec.observation_shape), np.uint8 if spec.is_image else np.float32)
    while header := requests.read(HEADER.size):
        command, rows = HEADER.unpack(header)
        values = np.frombuffer(requests.read(8 * rows), np.int64)
        active = np.frombuffer(requests.read(rows), np.bool_)
        outcomes = np.zeros((rows, 4), np.float32)
        act_on(envs, command, values, active, every, outcomes)
        replies.write(HEADER.pack(0, 0) + outcomes.tobytes())
        replies.write(every[:rows][active].data)
        replies.flush()
