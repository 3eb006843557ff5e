"""Steps per second of the evaluation environments beside Gymnasium's, in one run.

    python scripts/env_speed.py [--game Boxing Pong] [--rounds 12]

Two pairs take turns, so that whatever else the machine does falls on all of them. On one core: a Gymnasium environment
(AtariPreprocessing + FrameStackObservation) and one of ours. On all cores: one such Gymnasium environment on each, in a
process of its own and waiting for no other, and a VectorEnv, whose environments wait for each other at every step.
Ratios are medians over the rounds. Games of Boxing all last equally long, so that none waits for another to end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

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
    actions: int = stacked.action_space.n  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)

    def play(steps: int) -> int:
        for a in rng.integers(actions, size=steps).tolist():
            _, _, terminated, truncated, _ = stacked.step(a)
            if terminated or truncated:
                stacked.reset()
        return steps

    return play


def play_when_told(game: str, told: Connection) -> None:
    """In a process of its own: one Gymnasium environment."""
    play = gymnasium_steps(game)
    while steps := told.recv():
        told.send(play(steps))


class OneOnEachCore:
    """Gymnasium environments in as many processes as there are cores, started together and else on their own."""

    def __init__(self, game: str, cores: int) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(cores)]
        self._ends = [ours for ours, _ in pipes]
        self._processes = [context.Process(target=play_when_told, args=(game, theirs)) for _, theirs in pipes]
        for process in self._processes:
            process.start()

    def play(self, steps: int) -> int:
        for end in self._ends:
            end.send(steps // len(self._ends))
        return sum(end.recv() for end in self._ends)

    def close(self) -> None:
        for end, process in zip(self._ends, self._processes):
            end.send(0)
            process.join()


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


def report(speeds: dict[str, list[float]]) -> None:
    for name, values in speeds.items():
        print(f"  {name:26} {statistics.median(values):8.0f} steps/s")
    for ours, theirs in (("one of ours", "one of Gymnasium's"), ("ours on all cores", "Gymnasium on all cores")):
        ratio = statistics.median(a / b for a, b in zip(speeds[ours], speeds[theirs]))
        print(f"  {ours} / {theirs}: {ratio:.2f}x")


def measure(game: str, rounds: int, steps: int) -> None:
    cores = len(os.sched_getaffinity(0))
    envs = [make_env(game, EnvConfig(), training=False) for _ in range(ENVS_PER_CORE * cores)]
    others = OneOnEachCore(game, cores)
    with VectorEnv(envs, cores=cores) as vector:
        turns = {
            "one of Gymnasium's": (gymnasium_steps(game), steps),
            "one of ours": (own_steps(game), steps),
            "Gymnasium on all cores": (others.play, steps * cores),
            "ours on all cores": (vector_steps(vector), steps * cores),
        }
        for play, count in turns.values():
            play(count)  # the processes may still be loading
        speeds: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(rounds):
            for name, (play, count) in turns.items():
                start = time.perf_counter()
                speeds[name].append(play(count) / (time.perf_counter() - start))
    others.close()
    print(f"{game}, {cores} cores, median of {rounds} rounds")
    report(speeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default=["Boxing"], nargs="+")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=400, help="steps of a turn, per core")
    options = parser.parse_args()
    for game in options.game:
        measure(game, options.rounds, options.steps)


if __name__ == "__main__":
    main()
