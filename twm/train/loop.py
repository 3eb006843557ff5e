"""Training from the first random step to the last evaluation (paper, section 2.3 and Algorithm 1)."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from twm.config import Config, ConfigError, to_dict, validate
from twm.nn.memory import tune_allocator
from twm.train import checkpoint
from twm.train.display import Display
from twm.train.evaluate import final_evaluation
from twm.train.files import read_json
from twm.train.metrics import MetricLog
from twm.train.pretrain import pretrain
from twm.train.run import Run
from twm.train.rundir import RunDir, write_json
from twm.train.schedule import with_interactions

MAY_CHANGE = {
    "device",
    "compile",
    "threads",
    "train.interactions",
    "train.samples",  # follows the interactions, so that the updates per interaction stay
    "train.eval_every",
    "train.eval_episodes",
    "train.final_episodes",
    "train.log_every",
    "train.checkpoint_every",
}
"""Options that a resumed run may be given anew."""


def train(
    config: Config,
    out: Path | str | None = None,
    *,
    quiet: bool = False,
    track: tuple[str, ...] = (),
    dataset: Path | None = None,
) -> dict[str, Any]:
    """Run ``config`` to its end in the directory ``out``, or go on with the run there; returns its evaluation.

    Without ``out`` the run goes to runs/ENV-seedSEED. A run that is there may grow: more interactions keep their
    updates per interaction. With ``dataset`` the world model alone is trained, on recorded episodes.
    """
    out = Path("runs") / f"{re.sub('[^A-Za-z0-9.]+', '-', config.env)}-seed{config.seed}" if out is None else Path(out)
    if dataset is not None or RunDir(out).held_out.is_dir():
        from twm.train.offline import train_offline

        return train_offline(config, dataset, out, quiet=quiet, track=track)
    validate(config)
    config = _continued(config, RunDir(out))
    configure_torch(config)
    prepared = RunDir.prepare(out, to_dict(config), MAY_CHANGE)
    directory = prepared.run
    with directory.lock(), Display(quiet=quiet) as display:
        if directory.eval_path.exists():
            display.note(f"{out} is finished; its evaluation is in {directory.eval_path}")
            return {**read_json(directory.eval_path), "run": str(out)}
        for option, (before, now) in prepared.changes.items():
            display.note(f"{option}: {before} → {now}")
        with MetricLog(directory.metrics_path, track, config=to_dict(config)) as metrics:
            run = Run(config, directory, metrics, display)
            with stopping_by_signal(run):
                try:
                    explore(run)
                    pretrain(run)
                    learn(run)
                    run.save()
                finally:
                    run.learner.close()
                result = final_evaluation(run.agent, config, display, on_step=run.leave_if_requested)
            write_json(directory.eval_path, {**result, "interactions": run.interactions, "seconds": run.seconds})
    return {**read_json(directory.eval_path), "run": str(out)}


def explore(run: Run) -> None:
    """Fill the replay with a random policy."""
    if run.interactions >= run.schedule.prefill:
        return
    run.display.phase("exploring", run.schedule.prefill, start=run.interactions)
    while run.interactions < run.schedule.prefill:
        interact(run, int(run.rng.integers(run.env.spec.num_actions)))
        run.after_step()


def learn(run: Run) -> None:
    """Act, learn the world, learn in dreams, until the interactions run out."""
    run.display.phase("training", run.schedule.interactions, start=run.interactions)
    total = run.schedule.updates_due(run.schedule.interactions)
    with run.learner.together():
        while run.interactions < run.schedule.interactions or run.updates < total:
            due = run.schedule.updates_due(run.interactions)
            if run.updates >= due:  # not so only after a stop between two updates
                interact(run, run.agent.act(run.observation, reward=run.reward, restart=run.restart))
                due = run.schedule.updates_due(run.interactions)
            while run.updates < due:
                update(run)
                if run.updates < due:
                    run.stop_if_requested()
            run.after_step()


def interact(run: Run, a: int) -> None:
    """One step in the real environment, kept as an entry of the replay."""
    step = run.env.step(a)
    frame = run.observation[-run.env.spec.frame_shape[0] :]
    run.replay.append(frame, a, step.reward, step.terminated, step.truncated)
    run.interactions += 1
    run.score += step.reward
    run.display.advance(1)
    if step.game_over:
        run.averages.add_number("episode/score", run.score)
    if step.terminated or step.truncated:
        score = 0.0 if step.game_over else run.score
        run.begin_episode(run.env.reset())
        run.score = score
    else:
        run.observation, run.reward, run.restart = step.observation, step.reward, False


def update(run: Run) -> None:
    """One batch of experience: improve the world model, dream from its states, improve the policy."""
    c = run.config.world_model
    sequences, _ = run.replay.sample(c.batch_size, c.sequence_length, run.config.replay.temperature, run.rng)
    facts = run.learner.update(run.learner.batch(sequences))
    run.updates += 1
    run.averages.add(f"update {run.updates}", facts)


def configure_torch(config: Config) -> None:
    """Threads, precision and the memory allocator are settings of the whole process."""
    tune_allocator()
    if config.threads:
        torch.set_num_threads(config.threads)
    if config.precision == "tf32":
        torch.set_float32_matmul_precision("high")


def _continued(config: Config, directory: RunDir) -> Config:
    """The configuration with which the run in ``directory``, if there is one, goes on.

    With other interactions than it had, the sample budget follows, unless it was given, too: the updates per
    interaction stay. Fewer than it already has are refused.
    """
    if not directory.config_path.is_file():
        return config
    saved = directory.config().get("train", {})
    before, now = saved.get("interactions", config.train.interactions), config.train.interactions
    if now == before:
        return config
    loaded = checkpoint.load_latest(directory.checkpoints, prefix="counters/")
    if loaded is not None and loaded.step > now:
        raise ConfigError(
            f"{directory.path} already has {loaded.step:,} interactions: expected at least as many for "
            f"--train.interactions, but got {now:,}"
        )
    if config.train.samples != saved.get("samples"):
        return config
    return with_interactions(replace(config, train=replace(config.train, interactions=before)), now)


class Stoppable(Protocol):
    """A training that looks at ``stop_requested`` between two updates."""

    stop_requested: bool
    display: Display


@contextmanager
def stopping_by_signal(run: Stoppable) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks the run to save and stop; a second SIGINT stops at once."""
    if not _in_main_thread():
        yield
        return

    def ask(number: int, _: Any) -> None:
        if run.stop_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        run.stop_requested = True
        run.display.note("stopping after this update (press again to stop at once) …")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()
