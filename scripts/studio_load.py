"""Frames per second and latency of the studio with n dreams at once.

    python scripts/studio_load.py [RUN] [--dreams 1 20] [--seconds 10] [--rows 1] [--fps 15] [--json]

Starts a studio of its own for RUN, lets n pages dream with the policy at the asked pace, and prints a table: frames
that arrived per second and dream; milliseconds between a key being pressed and the first picture made with it (what a
player feels); milliseconds that a message takes there and back; and memory of the server. Without RUN it makes one of
the cpu preset on Pong that has learned nothing: the weights do not change the speed. Run it on a quiet machine. The
clients run in this process, the server in another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect

from twm.studio.protocol import unpack


class Visitor:
    """A page that lets the policy dream, now and then presses a key, and keeps the times."""

    def __init__(self, socket: ClientConnection, hello: dict[str, Any]) -> None:
        self.socket, self.actions = socket, len(hello["actions"])
        self.frames: list[float] = []  # when they came
        self.presses: list[float] = []  # seconds from key to picture
        self.answers: list[float] = []  # seconds there and back

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def begin(self, index: int, rows: int, fps: float) -> None:
        await self.send("start", start={"kind": "replay", "index": index}, rows=rows, seed=index)
        await self.send("stop_at_end", on=False)
        await self.send("control", mode="both")
        await self.send("speed", fps=fps)
        await self.send("play")

    async def dream(self, until: float, press_every: float) -> None:
        pressed: tuple[float, int] | None = None
        pinged: float | None = None
        due = time.monotonic() + press_every * np.random.default_rng(id(self) % 2**32).random()
        while time.monotonic() < until:
            message = await self.socket.recv()
            now = time.monotonic()
            if isinstance(message, str):
                if json.loads(message)["type"] == "pong" and pinged is not None:
                    self.answers.append(now - pinged)
                    pinged = None
                continue
            header, _ = unpack(message)
            self.frames.append(now)
            if pressed and header["steps"]["a"] and header["steps"]["a"][-1][0] == pressed[1]:
                self.presses.append(now - pressed[0])
                pressed = None
                await self.send("act", action=None)
            if now > due and pressed is None:
                # Another action than the last one, so that its picture is known by it.
                action = (header["steps"]["a"][-1][0] + 1) % self.actions if header["steps"]["a"] else 0
                pressed, pinged, due = (time.monotonic(), action), time.monotonic(), now + press_every
                await self.send("ping", id=0)
                await self.send("act", action=action)


async def visit(address: str, count: int, seconds: float, rows: int, fps: float) -> list[Visitor]:
    visitors: list[Visitor] = []
    for _ in range(count):
        socket = await connect(f"ws://{address}/api/dream", max_size=None, proxy=None)
        visitors.append(Visitor(socket, json.loads(await socket.recv())))
    for index, visitor in enumerate(visitors):
        await visitor.begin(index, rows, fps)
    until = time.monotonic() + 2 + seconds
    await asyncio.gather(*(visitor.dream(until, press_every=1.0) for visitor in visitors))
    for visitor in visitors:  # the first two seconds are not measured: everything is touched for the first time
        visitor.frames = [at for at in visitor.frames if at > until - seconds]
        await visitor.socket.close()
    return visitors


@contextmanager
def studio(run: Path) -> Iterator[tuple[str, int]]:
    """A studio on any free port: its address and process."""
    command = [sys.executable, "-m", "twm.cli", "studio", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            match = re.search(r"http://([\d.:]+)/", line)
            if match is None:
                raise SystemExit(f"the studio did not start: {line!r}")
            yield match[1], process.pid
        finally:
            process.terminate()


@contextmanager
def untrained_run() -> Iterator[Path]:
    """A run of the cpu preset on Pong, as short as can be."""
    options = {"prefill": 100, "interactions": 100, "samples": 1_000, "pretrain-samples": 0, "checkpoint-every": 100}
    options |= {"eval-every": 0, "final-episodes": 1}
    with tempfile.TemporaryDirectory(prefix="twm-studio-load-") as directory:
        out = Path(directory) / "cpu"
        command = [sys.executable, "-m", "twm.cli", "train", "--preset", "cpu", "--env", "Pong", "--out", str(out)]
        command += ["--quiet", "--env-options.max-steps=400"]
        command += [f"--train.{name}={value}" for name, value in options.items()]
        print("making a run of the cpu preset …", file=sys.stderr)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        yield out


def milliseconds(values: list[float]) -> dict[str, float]:
    quantiles = np.quantile(values, [0.5, 0.95, 1.0]) * 1000 if values else [float("nan")] * 3
    return dict(zip(("median", "p95", "worst"), (round(float(x), 1) for x in quantiles)))


def measure(run: Path, count: int, seconds: float, rows: int, fps: float) -> dict[str, Any]:
    with studio(run) as (address, process):
        visitors = asyncio.run(visit(address, count, seconds, rows, fps))
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    rates = [len(visitor.frames) / seconds for visitor in visitors]
    return {
        "dreams": count,
        "rows": rows,
        "asked_fps": fps,
        "fps": {"mean": round(float(np.mean(rates)), 1), "worst": round(min(rates), 1)},
        "key_to_picture_ms": milliseconds([x for visitor in visitors for x in visitor.presses]),
        "there_and_back_ms": milliseconds([x for visitor in visitors for x in visitor.answers]),
        "server_mb": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6),
    }


# Times are median / 95 % / worst.
HEAD = """| dreams | asked | frames a second, mean (worst) | key to picture, ms | message there and back, ms | memory |
|---:|---:|---:|---:|---:|---:|"""


def line(result: dict[str, Any]) -> str:
    """A line of the table, for docs/performance.md."""
    fps, key, message = result["fps"], result["key_to_picture_ms"], result["there_and_back_ms"]
    times = [" / ".join(f"{each[name]:.0f}" for name in ("median", "p95", "worst")) for each in (key, message)]
    dreams = str(result["dreams"]) if result["rows"] == 1 else f"{result['dreams']} x {result['rows']} rows"
    speed = f"{fps['mean']} ({fps['worst']})"
    return f"| {dreams} | {result['asked_fps']:g} | {speed} | {times[0]} | {times[1]} | {result['server_mb']} MB |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Frames per second and latency of the studio with n dreams at once.")
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--dreams", type=int, nargs="+", default=[1, 20])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--fps", type=float, default=15)
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    options = parser.parse_args()
    with untrained_run() if options.run is None else nullcontext(options.run) as run:
        if not options.json:
            print(HEAD, flush=True)
        for count in options.dreams:
            result = measure(run, count, options.seconds, options.rows, options.fps)
            print(json.dumps(result) if options.json else line(result), flush=True)


if __name__ == "__main__":
    main()
