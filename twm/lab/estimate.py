"""How long a run will take on this machine, by timing one update of each kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from twm.config import Config
from twm.envs import env_spec
from twm.lab.bench import filled_replay, synchronise
from twm.train.learner import Learner
from twm.train.loop import configure_torch
from twm.train.run import choose_device
from twm.train.schedule import make_schedule


def run_seconds(config: Config) -> float:
    """Seconds of training: updates and pretraining. Playing and evaluation come on top, a small part."""
    configure_torch(config)
    c, schedule = config.world_model, make_schedule(config)
    spec = env_spec(config.env, config.env_options)
    learner = Learner(config, spec, choose_device(config.device))
    replay = filled_replay(spec, c.batch_size + 10 * c.sequence_length)
    batch = learner.batch(replay.sample(c.batch_size, c.sequence_length, np.inf, np.random.default_rng(0))[0])
    returns = torch.zeros(c.batch_size, c.sequence_length, device=learner.device)
    seconds = (
        schedule.updates * _seconds(lambda: learner.update(batch), learner.device)
        + schedule.pretrain_observation * _seconds(lambda: learner.pretrain_observation(batch), learner.device)
        + schedule.pretrain_dynamics * _seconds(lambda: learner.pretrain_dynamics(batch), learner.device)
        + schedule.pretrain_policy * _seconds(lambda: learner.pretrain_policy(batch, returns), learner.device)
    )
    learner.close()
    return seconds


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    work()  # the first call is not like the others
    synchronise(device)
    start = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - start
