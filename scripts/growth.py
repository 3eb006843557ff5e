"""How cost grows: time with the size of the replay and the length of dreams, memory with the size of the replay.

    python scripts/growth.py [--preset cpu] [--env Pong] [--out results/bench/growth.json] [--figure FILE.png]

Sizes of a kind take turns, and the best of all rounds counts, so that whatever else the machine does falls on all of
them. Memory is the resident size of a process that holds a replay filled so far.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twm.analysis.style import PALETTE, in_thousands, new_figure, save, tidy
from twm.config import Config, preset, with_options
from twm.envs import env_spec
from twm.imagination import imagine
from twm.lab.bench import filled_replay, matmul_gflops
from twm.replay import Replay
from twm.train.files import write_json
from twm.train.learner import Learner
from twm.train.loop import configure_torch
from twm.train.rundir import machine

CPU = torch.device("cpu")
REPLAYS = (100_000, 300_000, 1_000_000)
HORIZONS = (5, 10, 15, 30, 60)


def best_of_turns(works: Mapping[int, Callable[[], Any]], rounds: int) -> dict[int, float]:
    """Seconds of the best call of each, called in turn; a first round warms up."""
    best = dict.fromkeys(works, math.inf)
    for size, work in [*works.items()] * (rounds + 1):
        start = time.perf_counter()
        work()
        best[size] = min(best[size], time.perf_counter() - start)
    return best


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def fill(config: Config) -> tuple[dict[int, Replay], dict[int, float]]:
    """Replays of several sizes, and by how many MB each has made this process larger."""
    spec = env_spec(config.env, config.env_options)
    replays, memory = {}, {}
    for size in REPLAYS:
        before = resident_mb()
        replays[size] = filled_replay(spec, size)
        memory[size] = resident_mb() - before
    return replays, memory


def drawing(config: Config, replays: Mapping[int, Replay]) -> dict[int, Callable[[], Any]]:
    """To draw a batch from each replay."""
    c, rng = config.world_model, np.random.default_rng(0)
    arguments = (c.batch_size, c.sequence_length, config.replay.temperature, rng)
    return {size: partial(replay.sample, *arguments) for size, replay in replays.items()}


def updating(learner: Learner, draws: Mapping[int, Callable[[], Any]]) -> dict[int, Callable[[], Any]]:
    """A whole update with such a batch."""
    return {size: lambda draw=draw: learner.update(learner.batch(draw()[0])) for size, draw in draws.items()}  # type: ignore[misc]


def dreaming(config: Config, learner: Learner, replay: Replay) -> dict[int, Callable[[], Any]]:
    """Imagination of several lengths."""
    c, p = config.world_model, config.policy
    batch = learner.batch(replay.sample(c.batch_size, c.sequence_length, math.inf, np.random.default_rng(0))[0])
    _, pool = learner.update_world_model(batch)
    return {H: partial(imagine, learner.world_model, learner.policy, pool, p.batch_size, H) for H in HORIZONS}


def draw_figure(found: dict[str, dict[int, float]], path: Path) -> None:
    figure = new_figure(9, 2.8)
    axes = figure.subplots(1, 3)
    panels = (
        ("update", "seconds an update", "entries in the replay"),
        ("imagination", "seconds of imagination", "imagined steps"),
        ("memory_mb", "MB of the replay", "entries in the replay"),
    )
    for axis, (name, title, label), colour in zip(axes, panels, PALETTE):
        axis.plot(list(found[name]), list(found[name].values()), "o-", color=colour)
        axis.set(title=title, xlabel=label, xlim=(0, None), ylim=(0, 1.15 * max(found[name].values())))
        tidy(axis)
        in_thousands(axis)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("--env", default="Pong")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()

    config = with_options(preset(options.preset), {"env": options.env})
    configure_torch(config)
    replays, memory = fill(config)
    learner = Learner(config, env_spec(config.env, config.env_options), CPU)
    draws = drawing(config, replays)
    found = {
        "draw": best_of_turns(draws, options.rounds),
        "update": best_of_turns(updating(learner, draws), options.rounds),
        "imagination": best_of_turns(dreaming(config, learner, replays[REPLAYS[0]]), options.rounds),
        "memory_mb": memory,
    }
    for name, values in found.items():
        print(f"{name:12}", "  ".join(f"{size:>9,}: {value:.4g}" for size, value in values.items()))
    first, last = REPLAYS[0], REPLAYS[-1]
    ratio = found["update"][last] / found["update"][first]
    print(f"an update with {last:,} entries takes {ratio:.2f}x that with {first:,}")
    print(f"memory: {memory[last] / last * 1e6:,.0f} bytes an entry")
    if options.figure is not None:
        draw_figure(found, options.figure)
    if options.out is not None:
        settings = {"preset": options.preset, "env": options.env, "rounds": options.rounds}
        write_json(options.out, {"machine": {"gflops": matmul_gflops(CPU), **machine()}, **found, "settings": settings})


if __name__ == "__main__":
    main()
