"""Evaluation: whole games with the policy as it is, and the random policy beside it.

Games run in parallel in rounds: new ones begin only when all of a round have ended, so that short games are not
over-represented. The policy is sampled (temperature 1), the encoder takes the most likely latents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open

from twm.agent import Agent
from twm.config import Config, from_dict
from twm.envs import Env, env_spec, make_env
from twm.envs.vector import VectorEnv
from twm.intervals import mean_interval
from twm.replay import FRAMES_FILE, Replay
from twm.train import checkpoint
from twm.train.display import Display
from twm.train.files import RunError
from twm.train.rundir import RunDir
from twm.types import EnvSpec

WEIGHTS_FILE = "weights.safetensors"  # of an export

PARALLEL = 16  # games in a round

Policy = Callable[[npt.NDArray[Any], npt.NDArray[np.float32], npt.NDArray[np.bool_]], npt.NDArray[np.int64]]
"""Actions for observations, the rewards before them, and whether each begins an episode."""


def evaluate(
    agent: Agent,
    config: Config,
    episodes: int,
    *,
    seed: int,
    temperature: float = 1.0,
    on_step: Callable[[], None] | None = None,
    film: Callable[[Env], None] | None = None,
) -> dict[str, Any]:
    """Scores of ``episodes`` games with their mean and 95 % interval. Leaves all random generators as they were."""

    def policy(
        o: npt.NDArray[Any], r: npt.NDArray[np.float32], restart: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        actions: npt.NDArray[np.int64] = agent.act(o, temperature=temperature, reward=r, restart=restart)
        return actions

    remembered = agent.state()
    with own_random_numbers(seed):
        scores = play(policy, config, episodes, seed=seed, before_round=agent.forget, on_step=on_step, film=film)
    agent.load_state(remembered)
    return summary(scores)


def evaluate_random(
    config: Config, episodes: int, *, seed: int, on_step: Callable[[], None] | None = None
) -> dict[str, Any]:
    """The same with uniformly random actions."""
    rng = np.random.default_rng(seed)
    actions = env_spec(config.env, config.env_options).num_actions
    return summary(
        play(lambda o, _r, _s: rng.integers(actions, size=len(o)), config, episodes, seed=seed, on_step=on_step)
    )


def play(
    policy: Policy,
    config: Config,
    episodes: int,
    *,
    seed: int,
    before_round: Callable[[], None] | None = None,
    on_step: Callable[[], None] | None = None,
    film: Callable[[Env], None] | None = None,
) -> list[float]:
    """Scores of whole games, round by round; ``film`` is shown the first environment after each of its steps."""
    options, noops = config.env_options, config.train.eval_noop_max
    envs = [make_env(config.env, options, training=False, noop_max=noops) for _ in range(min(episodes, PARALLEL))]
    seeds = np.random.SeedSequence(seed).generate_state(episodes)
    scores: list[float] = []
    with VectorEnv(envs, cores=config.threads) as vector:
        while len(scores) < episodes:
            rows = min(len(envs), episodes - len(scores))
            if before_round is not None:
                before_round()
            first = film if not scores else None
            scores += _round(policy, vector, rows, [int(s) for s in seeds[len(scores) :][:rows]], on_step, first)
    return scores


def _round(
    policy: Policy,
    vector: VectorEnv,
    rows: int,
    seeds: list[int],
    on_step: Callable[[], None] | None,
    film: Callable[[Env], None] | None,
) -> list[float]:
    o = vector.reset(seeds)
    active = np.ones(rows, np.bool_)
    scores, r, restart = np.zeros(rows), np.zeros(rows, np.float32), np.ones(rows, np.bool_)
    while active.any():
        step = vector.step(policy(o, r, restart), active)
        o, r, restart = step.observations, step.rewards, np.zeros(rows, np.bool_)
        scores += np.where(active, r, 0.0)
        if film is not None and active[0]:
            film(vector.envs[0])
        active &= ~step.game_over
        if on_step is not None:
            on_step()
    return [float(score) for score in scores]


def summary(scores: list[float]) -> dict[str, Any]:
    """What eval.json holds of some episodes: each score, their mean and its 95 % interval."""
    interval = mean_interval(scores)
    return {"episodes": scores, "mean": interval.value, "low": interval.low, "high": interval.high}


def final_evaluation(
    agent: Agent, config: Config, display: Display, on_step: Callable[[], None] | None = None
) -> dict[str, Any]:
    """The contents of eval.json: agent and random policy over as many episodes, with the same seeds."""
    episodes = config.train.final_episodes
    display.phase("evaluating", None, unit="steps")

    def tick() -> None:
        display.advance(1)
        if on_step is not None:
            on_step()

    result = evaluate(agent, config, episodes, seed=config.seed, on_step=tick)
    random = evaluate_random(config, episodes, seed=config.seed, on_step=tick)
    result |= {f"random_{key}": value for key, value in random.items()}
    return {**result, "optimal_return": agent.spec.optimal_return, "env": config.env, "seed": config.seed}


def load_agent(run: Path, *, which: str = "latest", device: str = "auto") -> tuple[Agent, Config, int]:
    """Agent and configuration of a run, or of what ``twm export`` made of one, and after how many interactions.

    Reads weights only."""
    from twm.train.learner import Learner
    from twm.train.run import choose_device

    directory = RunDir.open(run)
    config = from_dict(directory.config())
    state, step = _exported(run / WEIGHTS_FILE) if (run / WEIGHTS_FILE).is_file() else _saved(directory, which)
    learner = Learner(config, run_spec(directory, config), choose_device(device))
    learner.world_model.load_state_dict(state["world_model"])
    learner.policy.load_state_dict(state["policy"])
    return learner.agent, config, step


def _saved(directory: RunDir, which: str) -> tuple[dict[str, Any], int]:
    read = checkpoint.load_best if which == "best" else checkpoint.load_latest
    loaded = read(directory.checkpoints, prefix=("world_model/", "policy/"))
    if loaded is None:
        raise RunError(f"{directory.path} has no {which} checkpoint yet: wait for the run to save one")
    return loaded.state, loaded.step


def _exported(path: Path) -> tuple[dict[str, Any], int]:
    with safe_open(path, framework="pt") as file:
        names = [name.partition("/") for name in file.keys()]  # noqa: SIM118 (no mapping)
        state: dict[str, Any] = {part: {} for part, _, _ in names}
        for part, _, name in names:
            state[part][name] = file.get_tensor(f"{part}/{name}")
        return state, int((file.metadata() or {}).get("interactions", 0))


def load(run: Path | str, *, checkpoint: str = "latest", device: str = "auto") -> Agent:
    """The trained agent of a run: ``agent.act(observation)``, ``agent.world_model.imagine(...)``."""
    return load_agent(Path(run), which=checkpoint, device=device)[0]


def load_replay(run: Path, spec: EnvSpec) -> Replay | None:
    """The experience of a run up to its latest checkpoint, read-only; None where its files are not there."""
    directory = RunDir.open(run)
    if not (directory.replay / FRAMES_FILE).is_file():
        return None
    loaded = checkpoint.load_latest(directory.checkpoints, prefix=("replay/",))
    if loaded is None:
        return None
    saved = loaded.state["replay"]
    return Replay.read(directory.replay, spec, saved["length"], np.asarray(saved["visits"]))


def run_spec(directory: RunDir, config: Config) -> EnvSpec:
    """What the models of a run know of its environment, or of the recorded episodes in its place."""
    if directory.spec_path.exists():
        from twm.train.offline import saved_spec

        return saved_spec(directory)
    return env_spec(config.env, config.env_options)


def evaluate_run(
    run: Path,
    *,
    episodes: int,
    seed: int = 0,
    checkpoint: str = "latest",
    device: str = "auto",
    video: Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Play ``episodes`` games with the agent of a run; the same seed plays the same games."""
    agent, config, step = load_agent(run, which=checkpoint, device=device)
    with Display(quiet=quiet) as display:
        display.phase("evaluating", None, unit="steps")
        if video is None:
            result = evaluate(agent, config, episodes, seed=seed, on_step=lambda: display.advance(1))
        else:
            from twm.train.video import Film

            with Film(video) as film:
                result = evaluate(
                    agent,
                    config,
                    episodes,
                    seed=seed,
                    on_step=lambda: display.advance(1),
                    film=lambda e: film.add(e.render()),
                )
    return {**result, "optimal_return": agent.spec.optimal_return, "interactions": step, "seed": seed}


@contextmanager
def own_random_numbers(seed: int) -> Iterator[None]:
    """torch draws from its own seed inside; outside nothing has changed, so that looking at a run never alters one."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):  # all of them: the seed goes to all
        torch.manual_seed(seed)
        yield
