"""Environments in another process, for :class:`twm.envs.vector.VectorEnv`.

Threads cannot share the work: ale-py holds the interpreter lock while it emulates. So a worker is a child process
(:mod:`twm.child`) that makes its own environments from their recipes. What it is to do, and what came of it, lies on a
board in memory that both see; a byte through a pipe says that it is there.

    recipes     one line of JSON
    request     one byte, what to do
    reply       one byte: DONE; or FAILED, and a line that says why
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from twm import child
from twm.config import EnvConfig
from twm.envs.base import Env, look_later
from twm.types import EnvSpec, FrameArray

RESET, STEP = 0, 1
DONE, FAILED = 0, 1


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


def board(file: int, spec: EnvSpec, rows: int) -> npt.NDArray[Any]:
    """A row for each environment, in the memory of an open file, which becomes as large as it must be."""
    row = [
        ("value", np.int64),  # a seed or an action
        ("active", np.bool_),  # is there anything to do?
        ("outcome", np.float32, 4),  # reward, terminated, truncated, game_over
        ("observation", np.uint8 if spec.is_image else np.float32, spec.observation_shape),
    ]
    dtype = np.dtype(row, align=True)
    os.ftruncate(file, rows * dtype.itemsize)
    return np.frombuffer(mmap.mmap(file, rows * dtype.itemsize), dtype)


class Worker:
    """The parent's end. Sending and receiving are apart, so that all workers compute at the same time."""

    def __init__(self, spec: EnvSpec, recipes: Sequence[Mapping[str, Any]]) -> None:
        with child.shared_file() as file:
            self._board = board(file, spec, len(recipes))
            self._process = child.start("twm.envs.worker", pass_fds=[file])
            self._write(json.dumps({"board": file, "recipes": recipes}).encode() + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: int, values: npt.NDArray[np.int64], active: npt.NDArray[np.bool_]) -> None:
        """For the first ``len(values)`` environments."""
        self._board["value"][: len(values)] = values
        self._board["active"] = False
        self._board["active"][: len(values)] = active
        self._write(bytes([command]))

    def receive(
        self, active: npt.NDArray[np.bool_], observations: FrameArray, outcomes: npt.NDArray[np.float32]
    ) -> None:
        """Wait for the reply to the last request and write it into the rows given."""
        stream = self._stream(self._process.stdout)
        status = child.read_byte(stream)
        if not status:
            raise self._ended()
        if status[0] == FAILED:
            raise RuntimeError(f"environment worker: {stream.readline().decode().strip()}")
        outcomes[:] = self._board["outcome"][: len(outcomes)]
        rows = self._board["observation"]
        for row in np.flatnonzero(active).tolist():
            observations[row] = rows[row]

    def close(self) -> None:
        child.stop(self._process)

    def _write(self, message: bytes) -> None:
        stream = self._stream(self._process.stdin)
        try:
            stream.write(message)
            stream.flush()
        except OSError as error:
            raise self._ended() from error

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
        message = " ".join(f"{type(error).__name__}: {error}".split())  # on one line
        replies.write(bytes([FAILED]) + message.encode() + b"\n")
        replies.flush()


def _serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    import cv2

    from twm.envs import make_env

    cv2.setNumThreads(1)
    given = json.loads(requests.readline())
    envs = [make_env(**{**recipe, "options": EnvConfig(**recipe["options"])}) for recipe in given["recipes"]]
    rows = board(given["board"], envs[0].spec, len(envs))
    while command := child.read_byte(requests):
        act_on(envs, command[0], rows["value"], rows["active"], rows["observation"], rows["outcome"])
        replies.write(bytes([DONE]))
        replies.flush()
