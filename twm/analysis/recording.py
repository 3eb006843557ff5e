"""Fresh experience to look at: episodes that no model was trained on, played by a run's policy or at random."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twm.agent import Agent
from twm.config import Config, ConfigError
from twm.envs import make_env
from twm.train.evaluate import own_random_numbers
from twm.train.offline import held_out_replay
from twm.train.rundir import RunDir
from twm.types import FrameArray

_FRESH = 0x5EE1  # seeds of these environments come from another stream than those of training and evaluation


@dataclass(frozen=True)
class Episode:
    """T interactions in a row, as the replay would hold them.

    The observation behind the last action is left out: after an end no model is trained to predict it.
    """

    o: FrameArray  # (T, C, height, width) uint8 or (T, C) float32: what each action was taken on
    a: npt.NDArray[np.int64]  # (T,)
    r: npt.NDArray[np.float32]  # (T,)
    terminated: bool  # the last action ended it; False where a time limit or the end of the recording did

    def __len__(self) -> int:
        return len(self.a)


def record(config: Config, steps: int, *, seed: int, agent: Agent | None = None) -> list[Episode]:
    """``steps`` interactions in the environment of training (a lost life ends an episode there, and that is what the
    model learned), by the policy of ``agent``, sampled, or by the random policy. The last episode may be cut off."""
    if steps < 1:
        raise ConfigError(f"a recording needs at least 1 step, got {steps}")
    streams = np.random.SeedSequence([_FRESH, seed, agent is None]).generate_state(2)
    rng = np.random.default_rng(streams[0])
    env = make_env(config.env, config.env_options, training=True)
    episodes: list[Episode] = []
    steps_of_one: list[tuple[FrameArray, int, float]] = []
    try:
        o, r, restart = env.reset(seed=int(streams[0])), 0.0, True
        with own_random_numbers(int(streams[1])), remembering(agent):
            for t in range(1, steps + 1):
                if agent is None:
                    a = int(rng.integers(env.spec.num_actions))
                else:
                    a = agent.act(o, reward=r, restart=restart)
                step = env.step(a)
                steps_of_one.append((o, a, step.reward))
                over = step.terminated or step.truncated
                if over or t == steps:
                    episodes.append(_episode(steps_of_one, step.terminated))
                    steps_of_one = []
                o, r, restart = (env.reset(), 0.0, True) if over else (step.observation, step.reward, False)
    finally:
        env.close()
    return episodes


def held_out(directory: RunDir, steps: int) -> list[Episode]:
    """The recorded episodes that a run was not trained on, as many whole ones as make up ``steps``."""
    replay = held_out_replay(directory)
    firsts = np.flatnonzero(replay.is_episode_start)
    episodes: list[Episode] = []
    for first, end in zip(firsts, [*firsts[1:], len(replay)]):
        if first < steps:
            part = slice(int(first), int(end))
            o, ended = replay.observations(np.arange(first, end)), bool(replay.terminated[end - 1])
            episodes.append(Episode(o, replay.actions[part], replay.rewards[part].copy(), ended))
    return episodes


def _episode(steps: list[tuple[FrameArray, int, float]], terminated: bool) -> Episode:
    o, a, r = zip(*steps, strict=True)
    return Episode(np.stack(o), np.array(a, np.int64), np.array(r, np.float32), terminated)


@contextmanager
def remembering(agent: Agent | None) -> Iterator[None]:
    """The agent begins anew inside, and afterwards remembers what it did before."""
    if agent is None:
        yield
        return
    before = agent.state()
    agent.forget()
    try:
        yield
    finally:
        agent.load_state(before)
