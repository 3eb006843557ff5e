"""The world model alone, trained on recorded episodes (:mod:`twm.dataset`): no environment, no policy.

The episodes are copied into the run: nine of ten into its replay, from which sequences are drawn as in any training,
every tenth into ``held_out/``, which the model never learns from. The result is a run like others: it can be resumed,
dreamt in (``twm studio``, :class:`twm.DreamEnv`) and measured on what was held out (``twm eval RUN --world-model``).

An update costs the samples that it would cost with the policy beside it, so a budget buys as many updates of the world
model as online. Intervals that count interactions elsewhere count updates here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twm.config import Config, ConfigError, to_dict, validate
from twm.dataset import Dataset, open_dataset
from twm.replay import Replay
from twm.train import checkpoint
from twm.train.averages import Averages
from twm.train.display import Display
from twm.train.files import read_json
from twm.train.learner import Learner
from twm.train.loop import MAY_CHANGE, configure_torch, stopping_by_signal
from twm.train.metrics import MetricLog
from twm.train.run import choose_device, random_state, set_random_state
from twm.train.rundir import RunDir, write_json
from twm.train.schedule import make_schedule
from twm.types import EnvSpec

HELD_OUT = "held_out"
EVERY = 10  # one episode in so many is held out
BATCHES = 8  # of held-out sequences in an evaluation


def train_offline(
    config: Config, dataset: Path | None, out: Path, *, quiet: bool = False, track: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Train on the episodes in ``dataset`` (None: those that the run in ``out`` already has) and evaluate."""
    data = None if dataset is None else open_dataset(dataset, config.env_options)
    if data is None and not RunDir(out).spec_path.exists():
        raise ConfigError(f"{out} has no episodes yet: give --dataset DIR")
    spec = saved_spec(RunDir(out)) if data is None else data.spec
    config = replace(config, env=spec.name)
    validate(config)
    configure_torch(config)
    prepared = RunDir.prepare(out, to_dict(config), MAY_CHANGE)
    directory = prepared.run
    with directory.lock(), Display(quiet=quiet) as display:
        if directory.eval_path.exists():
            display.note(f"{out} is finished; its evaluation is in {directory.eval_path}")
            return {**read_json(directory.eval_path), "run": str(out)}
        if data is not None and not directory.spec_path.exists():
            copy_episodes(data, directory, config)
        with MetricLog(directory.metrics_path, track, step_key="updates", config=to_dict(config)) as metrics:
            run = OfflineRun(config, directory, metrics, display)
            with stopping_by_signal(run):
                try:
                    run.learn()
                finally:
                    run.learner.close()
        result = {"held_out": run.held_out_losses(), "updates": run.updates, "env": config.env, "seed": config.seed}
        write_json(directory.eval_path, {**result, **run.sizes(), "seconds": run.seconds})
    return {**read_json(directory.eval_path), "run": str(out)}


# --------------------------------------------------------------------------------------------------
# Episodes


def copy_episodes(data: Dataset, directory: RunDir, config: Config) -> None:
    """Training and held-out episodes into the run; ``spec.json``, written last, says that all are there."""
    held_out = data.paths[EVERY - 1 :: EVERY] or data.paths[-1:]
    training = [path for path in data.paths if path not in set(held_out)]
    steps = {}
    places = {"training": (training, directory.replay), HELD_OUT: (held_out, directory.held_out)}
    for name, (paths, place) in places.items():
        replay = Replay.create(place, data.spec, data.steps)
        _fill(replay, data, paths)
        steps[name] = len(replay)
        replay.flush()
        replay.close()
    c = config.world_model
    for name, least in (("training", c.batch_size), (HELD_OUT, 1)):
        if steps[name] < least + c.sequence_length + 1:
            raise ConfigError(
                f"the {name.replace('_', '-')} episodes ({len(data.paths)} in all, every tenth held out) have "
                f"{steps[name]} steps, but {least + c.sequence_length + 1} are needed: record more, or lower "
                "--world-model.batch-size or --world-model.sequence-length"
            )
    spec = {"name": data.spec.name, "frame_shape": data.spec.frame_shape, "stack": data.spec.stack}
    write_json(directory.spec_path, {**spec, "actions": data.spec.actions, "steps": steps})


def _fill(replay: Replay, data: Dataset, paths: Sequence[Path]) -> None:
    for path in paths:
        episode = data.episode(path)
        last = len(episode.a) - 1
        for t, (frame, a, r) in enumerate(zip(episode.frames, episode.a, episode.r)):
            terminated = t == last and episode.terminated
            replay.append(frame, int(a), float(r), terminated, t == last and not terminated)


def saved_spec(directory: RunDir) -> EnvSpec:
    """What the models must know of the recorded episodes."""
    spec = read_json(directory.spec_path)
    return EnvSpec(spec["name"], tuple(spec["frame_shape"]), spec["stack"], tuple(spec["actions"]))


def held_out_replay(directory: RunDir) -> Replay:
    return _open(directory, directory.held_out, HELD_OUT, None)


def _open(directory: RunDir, place: Path, part: str, visits: Any) -> Replay:
    steps = int(read_json(directory.spec_path)["steps"][part])
    return Replay.read(place, saved_spec(directory), steps, visits)


# --------------------------------------------------------------------------------------------------
# Training


class OfflineRun:
    """One such run in memory, and how it is saved and found again (:class:`twm.train.run.Run` without a world)."""

    def __init__(self, config: Config, directory: RunDir, metrics: MetricLog, display: Display) -> None:
        self.config, self.directory, self.metrics, self.display = config, directory, metrics, display
        self.device = choose_device(config.device)
        torch.manual_seed(config.seed)
        self.rng = np.random.default_rng(config.seed)
        self.learner = Learner(config, saved_spec(directory), self.device)
        self.averages = Averages()
        self.updates = 0
        self.best = np.inf  # held-out loss
        self.stop_requested = False
        self._earlier_seconds, self._since = 0.0, time.monotonic()
        self._held_out = held_out_replay(directory)
        loaded = checkpoint.load_latest(directory.checkpoints)
        visits = None if loaded is None else np.asarray(loaded.state["replay"]["visits"])
        self._replay = _open(directory, directory.replay, "training", visits)
        if loaded is None:
            metrics.truncate(0)
        else:
            self._load(loaded)

    def learn(self) -> None:
        train, c = self.config.train, self.config.world_model
        total = make_schedule(self.config).updates
        self.display.phase("learning the world", total, unit="updates", start=self.updates)
        while self.updates < total:
            sequences, _ = self._replay.sample(
                c.batch_size, c.sequence_length, self.config.replay.temperature, self.rng
            )
            facts, _ = self.learner.update_world_model(self.learner.batch(sequences))
            self.updates += 1
            self.averages.add(f"update {self.updates}", facts)
            self.display.advance(1, **self.averages.glance())
            if self.updates % train.log_every == 0:
                self.averages.settle()
                self._log(self.averages.take())
            if train.eval_every and self.updates % train.eval_every == 0:
                self._evaluate()
            elif self.updates % train.checkpoint_every == 0:
                self._save()
            if self.stop_requested:
                self._save()
                self.display.note(f"stopped and saved; go on with: twm train --resume {self.directory.path}")
                raise KeyboardInterrupt
        self._evaluate()

    @torch.no_grad()
    def held_out_losses(self) -> dict[str, float]:
        """The terms of the loss on sequences spread evenly over the held-out episodes, and their weighted sum."""
        c = self.config.world_model
        most = self._held_out.starts(c.sequence_length)
        starts = np.unique(np.linspace(1, most, min(most, BATCHES * c.batch_size)).astype(np.int64))
        sums: dict[str, float] = {}
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(self.config.seed)  # every evaluation draws the same latents, and disturbs no later draw
            for first in range(0, len(starts), c.batch_size):
                chosen = starts[first : first + c.batch_size]
                batch = self.learner.batch(self._held_out.sequences(chosen, c.sequence_length))
                terms, _ = self.learner.world_model.losses(batch)
                values = {**dict(terms.items()), "total": self.learner.world_model.total(terms)}
                for name, value in values.items():
                    sums[name] = sums.get(name, 0.0) + float(value) * len(chosen)
        return {name: value / len(starts) for name, value in sums.items()}

    def sizes(self) -> dict[str, int]:
        return {"training_steps": len(self._replay), "held_out_steps": len(self._held_out)}

    @property
    def seconds(self) -> float:
        return self._earlier_seconds + time.monotonic() - self._since

    def _evaluate(self) -> None:
        losses = self.held_out_losses()
        self._log({f"held_out/{name}": value for name, value in losses.items()})
        self.display.note(f"{self.updates:,} updates: held-out loss {losses['total']:.4g}")
        is_best, self.best = losses["total"] < self.best, min(self.best, losses["total"])
        self._save(is_best=is_best)

    def _log(self, facts: dict[str, float]) -> None:
        self.metrics.log({"updates": self.updates, **facts, "time/elapsed": self.seconds})

    def _save(self, is_best: bool = False) -> None:
        self.averages.settle()
        checkpoint.save(self.directory.checkpoints, self.updates, self._state(), is_best=is_best)

    def _state(self) -> dict[str, Any]:
        return {
            **self.learner.state(),
            "counters": {"updates": self.updates},
            "replay": {"length": len(self._replay), "visits": self._replay.visits},
            "random": {"numpy": self.rng.bit_generator.state, "torch": random_state(self.device)},
            "metrics": {"position": self.metrics.position, "averages": self.averages.state()},
            "best": float(self.best),
            "seconds": self.seconds,
        }

    def _load(self, loaded: checkpoint.Loaded) -> None:
        state = loaded.state
        self.learner.load_state(state)
        self.updates, self.best = state["counters"]["updates"], state["best"]
        self.rng.bit_generator.state = state["random"]["numpy"]
        set_random_state(state["random"]["torch"], self.device)
        for warning in [*loaded.warnings, self.metrics.truncate(state["metrics"]["position"])]:
            if warning:
                self.display.note(f"warning: {warning}")
        self.averages.load_state(state["metrics"]["averages"])
        self._earlier_seconds = state["seconds"]
