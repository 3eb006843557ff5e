"""Steps per second of the evaluation environments beside Gymnasium's, in one run.

    python scripts/env_speed.py [--game Boxing] [--rounds 12]

Three things take turns, so that whatever else the machine does falls on all of them: one Gymnasium environment
(AtariPreprocessing + FrameStackObservation), one of ours, and a VectorEnv over all cores. Two ratios to Gymnasium's
are printed, medians over the rounds: steps per second and core, which is what a user gets, and steps per second of
processor time, which hardly depends on what else is running. Games of Boxing all last equally long, so that in the
VectorEnv none waits for the others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from twm.config import EnvConfig
from twm.envs import make_env
from twm.envs.vector import VectorEnv

ENVS_PER_CORE = 8


def gymnasium_steps(game: str) -> Callable[[int], int]:
    """A function that plays so many steps and says how many it played."""
    gymnasium.register_envs(ale_py)
    env = gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    stacked = FrameStackObservation(AtariPreprocessing(env, screen_size=64), 4)
    stacked.reset(seed=0)
    rng = np.random.default_rng(0)

    def play(steps: int) -> int:
        for a in rng.integers(stacked.action_space.n, size=steps).tolist():
            _, _, terminated, truncated, _ = stacked.step(a)
            if terminated or truncated:
                stacked.reset()
        return steps

    return play


def own_steps(game: str) -> Callable[[int], int]:
    env = make_env(game, EnvConfig(), training=False)
    env.reset(seed=0)
    rng = np.random.default_rng(0)

    def play(steps: int) -> int:
        for a in rng.integers(env.spec.num_actions, size=steps).tolist():
            if env.step(a).game_over:
                env.reset()
        return steps

    return play


def vector_steps(vector: VectorEnv) -> Callable[[int], int]:
    """New games begin when all have ended, as in evaluation."""
    rng = np.random.default_rng(0)
    vector.reset(list(range(vector.count)))
    active = np.ones(vector.count, np.bool_)

    def play(steps: int) -> int:
        played = 0
        while played < steps:
            played += int(active.sum())
            active[vector.step(rng.integers(vector.spec.num_actions, size=vector.count), active).game_over] = False
            if not active.any():
                vector.reset(rng.integers(2**31, size=vector.count).tolist())
                active[:] = True
        return played

    return play


def processor_time(workers: list[int]) -> float:
    """Seconds used by this process and its workers (Linux names the clock of process p by ~p << 3 | 2)."""
    return time.process_time() + sum(time.clock_gettime(~pid << 3 | 2) for pid in workers)


def report(speeds: dict[str, list[tuple[float, float]]], cores: int) -> None:
    """Each entry: steps per second, steps per second of processor time."""
    for name, values in speeds.items():
        wall, processor = (statistics.median(column) for column in zip(*values))
        print(f"  {name:12} {wall:8.0f} steps/s {processor:8.0f} steps/s of processor time")
    for name, divisor in (("one of ours", 1), ("vector", cores)):
        pairs = list(zip(speeds[name], speeds["gymnasium"]))
        wall = statistics.median(ours[0] / divisor / theirs[0] for ours, theirs in pairs)
        processor = statistics.median(ours[1] / theirs[1] for ours, theirs in pairs)
        print(f"  {name} / gymnasium: {wall:.2f}x per core, {processor:.2f}x per processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="Boxing")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=400, help="steps of a turn, per core")
    options = parser.parse_args()

    cores = len(os.sched_getaffinity(0))
    envs = [make_env(options.game, EnvConfig(), training=False) for _ in range(ENVS_PER_CORE * cores)]
    with VectorEnv(envs, cores=cores) as vector:
        turns = {
            "gymnasium": (gymnasium_steps(options.game), options.steps),
            "one of ours": (own_steps(options.game), options.steps),
            "vector": (vector_steps(vector), options.steps * cores),
        }
        speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
        for _ in range(options.rounds):
            for name, (play, steps) in turns.items():
                start, processor = time.perf_counter(), processor_time(vector.worker_ids)
                played = play(steps)
                wall, processor = time.perf_counter() - start, processor_time(vector.worker_ids) - processor
                speeds[name].append((played / wall, played / processor))
    print(f"{options.game}, {cores} cores, median of {options.rounds} rounds")
    report(speeds, cores)


if __name__ == "__main__":
    main()
