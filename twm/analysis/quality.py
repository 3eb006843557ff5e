"""How far dreams stay right on episodes the model has never seen: ``twm eval RUN --world-model``.

From every step t of a fresh episode the model dreams on with the actions that were really taken (open loop: nothing of
what really follows is shown to it). At horizon k, over all t for which step t+k exists:

    mse                   mean (ô_{t+k} - o_{t+k})² of the newest frame, pixels in [0, 1], ô decoded from a dream that
                          takes the most likely latent states: the model's one guess
    mse_drawn             the same for a dream whose latent states are drawn, as in training
    mse_copy              of copying the frame of step t: the guess that a model must beat
    mse_reconstruction    of decoding the encoded frame t+k: the least that a dream can be expected to reach
    latent_accuracy       share of latent variables whose predicted category is the encoder's (most likely ones);
                          latent_accuracy_copy: of keeping those of step t
    reward_correlation    between r̂_{t+k-1} and r_{t+k-1}, the k-th reward of the dream
    return_correlation    between the sums of the first k rewards

A draw is one of many possible futures: where the future is open, ``mse_drawn`` counts its variance twice, once for the
draw and once for what happened, and no perfect model could avoid that. Hence the guess is what is held against a copy.
Episode ends are predicted one step ahead; the model says "over" where γ̂ < γ/2. Values are None where there is
nothing to measure: no step that far behind a start, no reward, no end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from twm.agent import Agent
from twm.analysis import dreaming
from twm.analysis.recording import Episode, held_out, record
from twm.config import ConfigError
from twm.train.evaluate import load_agent, own_random_numbers
from twm.train.rundir import RunDir

HORIZONS = (1, 5, 15, 50)
_MEANS = ("mse", "mse_drawn", "mse_copy", "mse_reconstruction", "latent_accuracy", "latent_accuracy_copy")

Numbers = npt.NDArray[np.float64]
Columns = dict[str, Numbers]
"""Measurements by name and horizon ("mse 5"), one number for each start."""


def world_model_quality(
    run: Path, *, steps: int, seed: int, checkpoint: str = "latest", device: str = "auto"
) -> dict[str, Any]:
    """Measure the model of a run on ``steps`` fresh interactions: half of them played by its policy, half at random.

    A model trained on recorded episodes is measured on those that were held out.
    """
    if steps < 2:
        raise ConfigError(f"half of the steps are played by each of two policies: expected at least 2, got {steps}")
    agent, config, interactions = load_agent(run, which=checkpoint, device=device)
    if RunDir(run).held_out.is_dir():
        sources = {"held_out": held_out(RunDir(run), steps)}
    else:
        sources = {
            "policy": record(config, steps - steps // 2, seed=seed, agent=agent),
            "random": record(config, steps // 2, seed=seed),
        }
    head = {"interactions": interactions, "steps": steps, "seed": seed, "context": dreaming.CONTEXT}
    with own_random_numbers(seed):
        return {**head, **measure(agent, sources)}


def measure(
    agent: Agent, sources: Mapping[str, Sequence[Episode]], horizons: Sequence[int] = HORIZONS
) -> dict[str, Any]:
    """The measurements of each source of episodes, and of all together ("both")."""
    found = {name: [_join(_chunks(agent, e, horizons)) for e in episodes] for name, episodes in sources.items()}
    results: dict[str, Any] = {}
    for name, columns in [*found.items(), ("both", [each for many in found.values() for each in many])]:
        together = _join(columns)
        results[name] = {
            "steps": len(together["ended"]),
            "episodes": len(columns),
            "horizons": {str(k): _at_horizon(together, k) for k in horizons},
            "ends": _ends(together["ended"] > 0, together["over"] > 0),
        }
    return results


def _join(columns: Iterator[Columns] | Sequence[Columns]) -> Columns:
    parts = list(columns)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


# --------------------------------------------------------------------------------------------------
# One episode


def _chunks(agent: Agent, episode: Episode, horizons: Sequence[int]) -> Iterator[Columns]:
    """Measurements at all starts of one episode, some starts at a time."""
    world_model, T = agent.world_model, len(episode)
    z = dreaming.encode(world_model, episode.o)
    frames, reconstructed = _newest(agent, episode.o), _decode(agent, z)
    r = _numbers(world_model.dynamics.squash(torch.as_tensor(episode.r)))  # on the scale that the model predicts
    earned = np.concatenate([[0.0], np.cumsum(r)])  # earned[t] = r_0 + … + r_{t-1}
    for first in range(0, T, dreaming.CHUNK):
        starts = np.arange(first, min(first + dreaming.CHUNK, T))
        actions, context = dreaming.recorded(episode, starts), dreaming.contexts(episode, z, starts)
        guess = dreaming.dream(world_model, context, max(horizons), actions, temperature=0.0)
        drawn = dreaming.dream(world_model, context, max(horizons), actions, temperature=1.0)
        over = dreaming.over(world_model, guess.gamma[:, 0])
        columns = {"ended": (starts == T - 1) & episode.terminated, "over": _numbers(over)}
        for k in horizons:
            t = starts[starts + k < T]  # whose k-th next observation exists; the first rows of the dreams
            columns |= {
                f"mse {k}": _error(_decode(agent, guess.z[: len(t), k]), frames[t + k]),
                f"mse_drawn {k}": _error(_decode(agent, drawn.z[: len(t), k]), frames[t + k]),
                f"mse_copy {k}": _error(frames[t], frames[t + k]),
                f"mse_reconstruction {k}": _error(reconstructed[t + k], frames[t + k]),
                f"latent_accuracy {k}": _agreement(agent, guess.z[: len(t), k], z[t + k]),
                f"latent_accuracy_copy {k}": _agreement(agent, z[t], z[t + k]),
            }
            t = starts[starts + k <= T]  # whose k-th reward exists: that of the last step counts too
            r_hat = _numbers(guess.r[: len(t), :k])
            columns |= {f"reward {k}": r[t + k - 1], f"reward_hat {k}": r_hat[:, -1]}
            columns |= {f"return {k}": earned[t + k] - earned[t], f"return_hat {k}": r_hat.sum(1)}
        yield columns


def _newest(agent: Agent, o: npt.NDArray[np.generic]) -> Numbers:
    """(T, numbers) newest frames of raw observations as the model sees them: pixels in [0, 1]."""
    observation = agent.world_model.observation
    scaled = observation.arrange(observation.scale(torch.as_tensor(o)))
    return _numbers(scaled[:, -agent.spec.frame_shape[0] :].flatten(1))


def _decode(agent: Agent, z: Tensor) -> Numbers:
    """(M, numbers) newest frames of latent states. Pixels are cut to [0, 1], which the decoder's mean may leave."""
    observation = agent.world_model.observation
    parts = [z.new_zeros(0, int(np.prod(agent.spec.frame_shape)))]
    with torch.no_grad():
        for part in z.split(dreaming.CHUNK) if len(z) else ():
            decoded = observation.arrange(observation.decode(part))[:, -agent.spec.frame_shape[0] :]
            parts.append((decoded.clamp(0, 1) if observation.is_image else decoded).flatten(1))
    return _numbers(torch.cat(parts))


def _numbers(x: Tensor) -> Numbers:
    numbers: Numbers = x.double().cpu().numpy()
    return numbers


def _error(x: Numbers, y: Numbers) -> Numbers:
    error: Numbers = np.square(x - y).mean(axis=1)
    return error


def _agreement(agent: Agent, x: Tensor, y: Tensor) -> Numbers:
    """Share of latent variables with the same category: one-hots overlap in as many places."""
    return _numbers((x * y).sum(-1) / agent.world_model.config.latent_variables)


# --------------------------------------------------------------------------------------------------
# Summaries


def _at_horizon(columns: Mapping[str, Numbers], k: int) -> dict[str, Any]:
    summary: dict[str, Any] = {"starts": len(columns[f"mse {k}"])}
    for name in _MEANS:
        values = columns[f"{name} {k}"]
        summary[name] = float(values.mean()) if len(values) else None
    for name in ("reward", "return"):
        summary[f"{name}_correlation"] = correlation(columns[f"{name}_hat {k}"], columns[f"{name} {k}"])
    return summary


def correlation(x: Numbers, y: Numbers) -> float | None:
    """Pearson's; None where one of them does not vary, which leaves it undefined."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _ends(really: npt.NDArray[np.bool_], said: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Precision: how many of the predicted ends came. Recall: how many of the ends that came were predicted."""
    right, predicted, happened = (int(x.sum()) for x in (really & said, said, really))
    return {
        "happened": happened,
        "predicted": predicted,
        "precision": right / predicted if predicted else None,
        "recall": right / happened if happened else None,
    }
