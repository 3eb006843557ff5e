"""Steps per second of the evaluation environments beside Gymnasium's, in one run.

    python scripts/env_speed.py [--game Boxing Pong] [--rounds 30]

Both sides play the same games, with the same seeds and actions, each from its start until it ends or for so many
steps: scenes of a game may differ tenfold in what they cost. Two pairs take turns, so that whatever else the machine
does falls on all of them; turns are short, because a virtual machine may be half as fast for seconds. On one core: a
Gymnasium environment (AtariPreprocessing + FrameStackObservation) and one of ours. On all cores: one such Gymnasium
environment on each, in a process of its own and waiting for no other, and a VectorEnv, whose environments wait for each
other at every step. Resets are not timed. Ratios are medians over the rounds, and each round has games of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from twm.config import EnvConfig
from twm.envs import make_env
from twm.envs.vector import VectorEnv

ENVS_PER_CORE = 8


Play = Callable[[Sequence[int], int], float]
"""Plays the games of these seeds for at most so many steps each, and returns steps per second."""


def actions(seed: int, count: int, steps: int) -> list[int]:
    return np.random.default_rng(seed).integers(count, size=steps).tolist()


def gymnasium_play(game: str) -> Callable[[Sequence[int], int], tuple[int, float]]:
    """One environment that plays game after game; returns steps and seconds."""
    gymnasium.register_envs(ale_py)
    env = gymnasium.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    stacked = FrameStackObservation(AtariPreprocessing(env, screen_size=64), 4)
    count: int = stacked.action_space.n  # type: ignore[attr-defined]

    def play(seeds: Sequence[int], steps: int) -> tuple[int, float]:
        played, seconds = 0, 0.0
        for seed in seeds:
            stacked.reset(seed=seed)
            start = time.perf_counter()
            for a in actions(seed, count, steps):
                played += 1
                _, _, terminated, truncated, _ = stacked.step(a)
                if terminated or truncated:
                    break
            seconds += time.perf_counter() - start
        return played, seconds

    return play


def play_when_told(game: str, told: Connection) -> None:
    """In a process of its own: one Gymnasium environment."""
    play = gymnasium_play(game)
    while request := told.recv():
        told.send(play(*request))


class OneOnEachCore:
    """Gymnasium environments in as many processes as there are cores, started together and else on their own."""

    def __init__(self, game: str, cores: int) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(cores)]
        self._ends = [ours for ours, _ in pipes]
        self._processes = [context.Process(target=play_when_told, args=(game, theirs)) for _, theirs in pipes]
        for process in self._processes:
            process.start()

    def play(self, seeds: Sequence[int], steps: int) -> float:
        """The speeds of all cores, added up."""
        for i, end in enumerate(self._ends):
            end.send((seeds[i :: len(self._ends)], steps))
        return sum(played / seconds for played, seconds in [end.recv() for end in self._ends])

    def close(self) -> None:
        for end, process in zip(self._ends, self._processes):
            end.send(None)
            process.join()


def one_of_gymnasiums(game: str) -> Play:
    play = gymnasium_play(game)

    def speed(seeds: Sequence[int], steps: int) -> float:
        played, seconds = play(seeds, steps)
        return played / seconds

    return speed


def one_of_ours(game: str) -> Play:
    env = make_env(game, EnvConfig(), training=False)

    def speed(seeds: Sequence[int], steps: int) -> float:
        played, seconds = 0, 0.0
        for seed in seeds:
            env.reset(seed=seed)
            start = time.perf_counter()
            for a in actions(seed, env.spec.num_actions, steps):
                played += 1
                if env.step(a).game_over:
                    break
            seconds += time.perf_counter() - start
        return played / seconds

    return speed


def all_of_ours(vector: VectorEnv) -> Play:
    def speed(seeds: Sequence[int], steps: int) -> float:
        vector.reset(seeds)
        each = np.array([actions(seed, vector.spec.num_actions, steps) for seed in seeds])
        active, played = np.ones(len(seeds), np.bool_), 0
        start = time.perf_counter()
        for t in range(steps):
            played += int(active.sum())
            active[vector.step(each[:, t], active).game_over] = False
            if not active.any():
                break
        return played / (time.perf_counter() - start)

    return speed


def report(speeds: dict[str, list[float]]) -> None:
    for name, values in speeds.items():
        print(f"  {name:26} {statistics.median(values):8.0f} steps/s")
    for ours, theirs in (("one of ours", "one of Gymnasium's"), ("ours on all cores", "Gymnasium on all cores")):
        ratio = statistics.median(a / b for a, b in zip(speeds[ours], speeds[theirs]))
        print(f"  {ours} / {theirs}: {ratio:.2f}x")


def measure(game: str, rounds: int, steps: int) -> None:
    cores = len(os.sched_getaffinity(0))
    games = ENVS_PER_CORE * cores
    envs = [make_env(game, EnvConfig(), training=False) for _ in range(games)]
    others = OneOnEachCore(game, cores)
    with VectorEnv(envs, cores=cores) as vector:
        turns: dict[str, tuple[Play, int]] = {
            "one of Gymnasium's": (one_of_gymnasiums(game), 2),
            "one of ours": (one_of_ours(game), 2),
            "Gymnasium on all cores": (others.play, games),
            "ours on all cores": (all_of_ours(vector), games),
        }
        speeds: dict[str, list[float]] = {name: [] for name in turns}
        for i in range(rounds + 1):
            for name, (play, count) in turns.items():
                speed = play(range(i * games, i * games + count), steps)
                if i:  # in the first round the processes may still be loading
                    speeds[name].append(speed)
    others.close()
    print(f"{game}, {cores} cores, median of {rounds} rounds")
    report(speeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default=["Boxing"], nargs="+")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each")
    parser.add_argument("--steps", type=int, default=60, help="of each game at most")
    options = parser.parse_args()
    for game in options.game:
        measure(game, options.rounds, options.steps)


if __name__ == "__main__":
    main()
