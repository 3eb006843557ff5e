"""Where the time of an update goes: operators by their own time, for the world model, the dreams and the policy.

    python scripts/profile_update.py [--preset cpu] [--env Pong] [--rows 8]

Prints Markdown. The profiler itself takes time, small operators' most of all: shares, not seconds, are the result.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from twm.config import preset, with_options
from twm.envs import env_spec
from twm.lab.bench import filled_replay
from twm.train.learner import Learner
from twm.train.loop import configure_torch


def operators(work: Callable[[], Any], repeats: int = 3) -> list[tuple[str, float, int]]:
    """Name, share of all time and calls of each operator, the most expensive first."""
    work()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(repeats):
            work()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return [(event.key, event.self_cpu_time_total / total, event.count // repeats) for event in events]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("--env", default="Pong")
    parser.add_argument("--rows", type=int, default=8)
    options = parser.parse_args()

    config = with_options(preset(options.preset), {"env": options.env})
    configure_torch(config)
    spec, c = env_spec(config.env, config.env_options), config.world_model
    learner = Learner(config, spec, torch.device("cpu"))
    sequences, _ = filled_replay(spec, 5_000).sample(
        c.batch_size, c.sequence_length, math.inf, np.random.default_rng(0)
    )
    batch = learner.batch(sequences)
    _, starts = learner.update_world_model(batch)
    parts: dict[str, Callable[[], Any]] = {
        "world model update": lambda: learner.update_world_model(batch),
        "imagination": lambda: learner.dream(starts),
        "imagination and policy update": lambda: learner.update_policy(learner.dream(starts)),
    }
    print("| part | operator | share | calls |\n|---|---|---:|---:|")
    for part, work in parts.items():
        for name, share, calls in operators(work)[: options.rows]:
            print(f"| {part} | `{name}` | {share:.1%} | {calls:,} |")


if __name__ == "__main__":
    main()
