"""What the C files are worth: the parts of an update with all of them, and without some, in turns.

    python scripts/turns.py [--preset paper] [--env Pong] [--without products all] [--rounds 5]

``products,latents`` means without both files, ``all`` without any, ``tiles`` without the processor's tile registers:
values of TWM_NATIVE. Each way has a learner of its own with as many processes as training uses, and while one updates
the others wait. Prints Markdown: best / median seconds, and the ratio of the medians to those with all files.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection

import numpy as np
import torch

from twm import native
from twm.config import Config, preset, with_options
from twm.envs import env_spec
from twm.lab.bench import filled_replay, matmul_gflops
from twm.train.learner import Learner
from twm.train.loop import configure_torch

PARTS = ("world_model_update", "imagination", "policy_update")


def update_when_told(config: Config, value: str, told: Connection) -> None:
    """In a process of its own."""
    os.environ["TWM_NATIVE"] = value
    configure_torch(config)
    spec, c = env_spec(config.env, config.env_options), config.world_model
    learner = Learner(config, spec, torch.device("cpu"))
    replay, rng = filled_replay(spec, 5_000), np.random.default_rng(0)
    batch = learner.batch(replay.sample(c.batch_size, c.sequence_length, math.inf, rng)[0])
    while told.recv():  # an end that is closed ends this process, too
        times = [time.perf_counter()]
        _, starts = learner.update_world_model(batch)
        times.append(time.perf_counter())
        dream = learner.dream(starts)
        times.append(time.perf_counter())
        learner.update_policy(dream)
        times.append(time.perf_counter())
        told.send([b - a for a, b in zip(times, times[1:])])
    learner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--env", default="Pong")
    parser.add_argument("--without", nargs="+", default=["products", "all"])
    parser.add_argument("--rounds", type=int, default=5, help="updates of each, after a first one")
    options = parser.parse_args()

    config = with_options(preset(options.preset), {"env": options.env})
    ways = {"with all": ""}
    for names in options.without:
        ways[f"without {names}"] = "0" if names == "all" else ",".join(f"-{name}" for name in names.split(","))
    for value in ways.values():
        os.environ["TWM_NATIVE"] = value
        native.loaded()  # says which name is wrong
    context = multiprocessing.get_context("spawn")
    learners = []
    for value in ways.values():
        ours, theirs = context.Pipe()
        process = context.Process(target=update_when_told, args=(config, value, theirs))
        process.start()
        theirs.close()
        learners.append((ours, process))
    rounds: list[list[list[float]]] = []
    try:
        for _ in range(options.rounds + 1):
            rounds.append([])
            for told, _ in learners:
                told.send(True)
                rounds[-1].append(told.recv())
        for told, _ in learners:
            told.send(False)
    finally:
        for told, process in learners:
            told.close()  # ends those that still wait
            process.join()

    gflops = matmul_gflops(torch.device("cpu"))
    print(f"{options.preset}, {options.env}, {gflops:.0f} GFLOPS, {options.rounds} rounds\n")
    print(f"| part | {' | '.join(ways)} |\n|---{'|---:' * len(ways)}|")
    for i, part in enumerate(PARTS):
        seconds = [[one[way][i] for one in rounds[1:]] for way in range(len(ways))]
        middle = [statistics.median(each) for each in seconds]
        cells = [f"{min(each):.4f} / {m:.4f} ({m / middle[0]:.2f}x)" for each, m in zip(seconds, middle)]
        print(f"| `{part}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
