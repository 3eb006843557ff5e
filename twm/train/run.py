"""One run in memory: the parts of the circle, the counters, and how all of it is saved and found again.

Whatever influences a later number is part of :meth:`Run.state`, so a run that is killed and resumed goes through
the same numbers as one that is not: weights, optimisers, replay and its visits, random generators, counters,
averages not yet logged, the episode that is being played.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twm.config import Config
from twm.envs import make_env
from twm.replay import Replay
from twm.train import checkpoint
from twm.train.averages import Averages
from twm.train.display import Display
from twm.train.evaluate import evaluate
from twm.train.learner import Learner
from twm.train.metrics import MetricLog
from twm.train.rundir import RunDir
from twm.train.schedule import make_schedule


class Run:
    def __init__(self, config: Config, directory: RunDir, metrics: MetricLog, display: Display) -> None:
        self.config, self.directory, self.metrics, self.display = config, directory, metrics, display
        self.device = choose_device(config.device)
        self.schedule = make_schedule(config)
        self.env = make_env(config.env, config.env_options, training=True)
        torch.manual_seed(config.seed)
        self.rng = np.random.default_rng(config.seed)
        self.learner = Learner(config, self.env.spec, self.device)
        self.agent = self.learner.agent
        self.averages = Averages()
        self.interactions = 0
        self.updates = 0  # of the main loop
        self.pretrained = {"observation": 0, "dynamics": 0, "policy": 0}
        self.best_score = -np.inf
        self.stop_requested = False
        self._earlier_seconds = 0.0
        self._since = time.monotonic()
        loaded = checkpoint.load_latest(directory.checkpoints)
        if loaded is None:
            self.replay = Replay.create(directory.replay, self.env.spec, config.train.interactions)
            self.metrics.truncate(0)
            self.begin_episode(self.env.reset(seed=config.seed))
        else:
            for warning in loaded.warnings:
                display.note(f"warning: {warning}")
            self._load(loaded.state)

    # ----------------------------------------------------------------------------------------------
    # The episode being played

    def begin_episode(self, observation: np.ndarray[Any, Any]) -> None:
        self.observation = observation
        self.reward = 0.0  # of the step before, for a policy that remembers
        self.restart = True  # the next observation begins an episode
        self.score = 0.0

    # ----------------------------------------------------------------------------------------------
    # After each step: log, evaluate, save, each when due

    def after_step(self) -> None:
        train, n = self.config.train, self.interactions
        self.display.advance(0, updates=self.updates, **self.averages.glance())
        if n % train.log_every == 0:
            self.log()
        if train.eval_every and n % train.eval_every == 0 and train.prefill < n < train.interactions:
            self.evaluate()
        elif n % train.checkpoint_every == 0:
            self.save()
        self.stop_if_requested()

    def log(self, **facts: Any) -> None:
        """One record: averages since the last one, counters, and how long it all took."""
        self.averages.settle()
        record = {"interactions": self.interactions, "updates": self.updates, **self.averages.take(), **facts}
        self.metrics.log({**record, "time/elapsed": self.seconds})

    def evaluate(self) -> None:
        """Play a few whole games with the policy as it is, and keep the weights if it was never better."""
        train = self.config.train
        self.averages.settle()
        result = evaluate(self.agent, self.config, train.eval_episodes, seed=self.config.seed + 1 + self.interactions)
        facts = {f"eval/score_{key}": result[key] for key in ("mean", "low", "high")}
        self.metrics.log({"interactions": self.interactions, "updates": self.updates, **facts})
        self.display.advance(0, score=result["mean"])
        self.display.note(
            f"{self.interactions:,} interactions: score {result['mean']:g} over {train.eval_episodes} episodes"
        )
        is_best = result["mean"] > self.best_score
        self.best_score = max(self.best_score, result["mean"])
        self.save(is_best=is_best)

    def stop_if_requested(self) -> None:
        if self.stop_requested:
            self.save()
            self.leave_if_requested()

    def leave_if_requested(self) -> None:
        """Where everything is saved already."""
        if self.stop_requested:
            self.display.note(f"stopped and saved; go on with: twm train --resume {self.directory.path}")
            raise KeyboardInterrupt

    # ----------------------------------------------------------------------------------------------
    # Saving and loading

    @property
    def seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._since

    def save(self, is_best: bool = False) -> None:
        """Nothing that is not finite is ever saved: :meth:`Averages.settle` raises first."""
        self.averages.settle()
        self.replay.flush()
        checkpoint.save(self.directory.checkpoints, self.interactions, self.state(), is_best=is_best)

    def state(self) -> dict[str, Any]:
        return {
            **self.learner.state(),
            "agent": self.agent.state(),
            "counters": {"interactions": self.interactions, "updates": self.updates, "pretrained": self.pretrained},
            "episode": {
                "env": self.env.save(),
                "observation": self.observation,
                "reward": self.reward,
                "restart": self.restart,
                "score": self.score,
            },
            "replay": {"length": len(self.replay), "visits": self.replay.visits},
            "random": {"numpy": self.rng.bit_generator.state, "torch": random_state(self.device)},
            "metrics": {"position": self.metrics.position, "averages": self.averages.state()},
            "best_score": self.best_score,
            "seconds": self.seconds,
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.learner.load_state(state)
        self.agent.load_state(state["agent"])
        counters, episode, replay = state["counters"], state["episode"], state["replay"]
        self.interactions, self.updates = counters["interactions"], counters["updates"]
        self.pretrained = counters["pretrained"]
        capacity = self.config.train.interactions
        self.replay = Replay.open(
            self.directory.replay, self.env.spec, replay["length"], np.asarray(replay["visits"]), capacity
        )
        self._load_episode(episode)
        self.rng.bit_generator.state = state["random"]["numpy"]
        set_random_state(state["random"]["torch"], self.device)
        warning = self.metrics.truncate(state["metrics"]["position"])
        if warning:
            self.display.note(f"warning: {warning}")
        self.averages.load_state(state["metrics"]["averages"])
        self.best_score = state["best_score"]
        self._earlier_seconds = state["seconds"]

    def _load_episode(self, episode: dict[str, Any]) -> None:
        if episode["env"] is None:
            self.display.note(
                f"{self.env.spec.name} cannot save its state: the episode that was being played is cut off "
                "and a new one begins, so this run will differ from one that was not interrupted"
            )
            self.begin_episode(self.env.reset(seed=self.config.seed + self.interactions))
            self.replay.cut()
            return
        restored = self.env.restore({name: np.asarray(value) for name, value in episode["env"].items()})
        self.begin_episode(restored)
        self.observation = np.asarray(episode["observation"])
        self.reward, self.restart, self.score = episode["reward"], episode["restart"], episode["score"]


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
