"""Recorded episodes as files: read to train a world model on, written by a wrapper or from Minari.

A dataset is a directory with one ``.npz`` file for each episode, in the order of their names:

    observations    (T or T+1, height, width[, channels]) uint8 pictures, or (T or T+1, numbers) float vectors
    actions         (T,) whole numbers from 0 up: the action on seeing observation t
    rewards         (T,) numbers: what it earned
    terminations    (T,) bool: it ended the episode; true at most for the last one
    truncations     (T,) bool: a time limit did; an episode that ends with neither counts as cut off

The observation behind the last action may be there, as Gymnasium and Minari record it, and is not used: after
an end no model is trained to predict it. A file ``dataset.json`` may name the environment and the actions:
``{"env": "Breakout", "actions": ["NOOP", "FIRE", "RIGHT", "LEFT"]}``. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from twm.config import ConfigError, EnvConfig
from twm.envs.gym import ToFrame, frame_reader
from twm.types import EnvSpec, FrameArray

KEYS = ("observations", "actions", "rewards", "terminations", "truncations")
FACTS = "dataset.json"


class RecordedEpisode(NamedTuple):
    """T steps; the newest frame alone, as the replay keeps it."""

    frames: FrameArray  # (T, *frame_shape)
    a: npt.NDArray[np.int64]  # (T,)
    r: npt.NDArray[np.float32]  # (T,)
    terminated: bool  # else truncated, or cut off


@dataclass(frozen=True)
class Dataset:
    """The episodes of a directory, each read when it is asked for."""

    spec: EnvSpec
    paths: tuple[Path, ...]
    steps: int  # of all episodes
    observation_shape: tuple[int, ...]  # of one observation in the files
    to_frame: ToFrame

    def episode(self, path: Path) -> RecordedEpisode:
        found = _read(path)
        observations, a = found["observations"], found["actions"]
        if observations.shape[1:] != self.observation_shape:
            raise ConfigError(
                f"{path}: its observations have shape {observations.shape[1:]}, those of {self.paths[0].name} "
                f"{self.observation_shape}: put episodes of one kind into a dataset"
            )
        frames = np.stack([self.to_frame(observation) for observation in observations[: len(a)]])
        terminated = bool(found["terminations"][-1])
        return RecordedEpisode(frames, a.astype(np.int64), found["rewards"].astype(np.float32), terminated)


def open_dataset(directory: Path, options: EnvConfig) -> Dataset:
    """Look through a dataset: what its episodes are like, and whether all of them can be used.

    Pictures are grayed, resized and stacked as ``options`` say, like those of an environment.
    """
    paths = tuple(sorted(directory.glob("*.npz"))) if directory.is_dir() else ()
    if not paths:
        raise ConfigError(f"{directory} holds no recorded episodes: expected a directory with one .npz file for each")
    facts = _facts(directory)
    name = str(facts.get("env") or directory.resolve().name)
    largest, steps = 0, 0
    for path in paths:
        actions = _read(path, "actions")["actions"]
        largest, steps = max(largest, int(actions.max())), steps + len(actions)
    first = _read(paths[0])["observations"]
    names = tuple(map(str, facts.get("actions") or range(largest + 1)))
    if len(names) <= largest:
        raise ConfigError(f"{directory / FACTS} names {len(names)} actions, but the episodes contain action {largest}")
    space: gymnasium.Space[Any] = gymnasium.spaces.Box(0, 255, first.shape[1:], np.uint8)
    if first.ndim == 2:
        space = gymnasium.spaces.Box(-np.inf, np.inf, first.shape[1:], np.float32)
    shape, to_frame = frame_reader(name, space, options)
    return Dataset(EnvSpec(name, shape, options.stack, names), paths, steps, first.shape[1:], to_frame)


def _facts(directory: Path) -> dict[str, Any]:
    path = directory / FACTS
    if not path.exists():
        return {}
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(facts, dict):
        raise ConfigError(f'{path} must hold an object, e.g. {{"env": "Breakout"}}, but holds {type(facts).__name__}')
    return facts


def _read(path: Path, *keys: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of one episode (``keys`` alone, if given), checked."""
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [key for key in KEYS if key not in file.files]
            if missing:
                raise ConfigError(f"{path} lacks {', '.join(missing)}: expected the arrays {', '.join(KEYS)}")
            found = {key: file[key] for key in keys or KEYS}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} cannot be read as an .npz of plain arrays: {error}") from error
    _check(path, found)
    return found


def _check(path: Path, found: Mapping[str, npt.NDArray[Any]]) -> None:
    actions = found["actions"]
    if actions.ndim != 1 or not np.issubdtype(actions.dtype, np.integer):
        raise ConfigError(
            f"{path}: actions must be whole numbers (T,), but are {actions.dtype} of shape {actions.shape}: continuous "
            "actions are not supported; number the ones that occur, e.g. by bins"
        )
    if not len(actions) or int(actions.min()) < 0:
        raise ConfigError(f"{path}: expected at least one action, all from 0 up")
    for key in ("rewards", "terminations", "truncations"):
        if key in found and found[key].shape != actions.shape:
            raise ConfigError(f"{path}: {key} has shape {found[key].shape}, but there are {len(actions)} actions")
    for key in ("terminations", "truncations"):
        if key in found and found[key][:-1].any():
            raise ConfigError(f"{path}: {key} is true before the last step: write each episode to a file of its own")
    for key in ("rewards", "observations"):
        if key in found and not np.isfinite(found[key]).all():
            raise ConfigError(f"{path}: {key} holds values that are not finite")
    if "observations" in found:
        _check_observations(path, found["observations"], len(actions))


def _check_observations(path: Path, observations: npt.NDArray[Any], steps: int) -> None:
    if len(observations) not in (steps, steps + 1):
        raise ConfigError(
            f"{path}: expected an observation for each of {steps} actions, or one more, got {len(observations)}"
        )
    picture = observations.ndim in (3, 4) and observations.dtype == np.uint8
    vector = observations.ndim == 2 and np.issubdtype(observations.dtype, np.number)
    if not picture and not vector:
        raise ConfigError(
            f"{path}: observations must be uint8 pictures (T, height, width[, channels]) or vectors (T, numbers), but "
            f"are {observations.dtype} of shape {observations.shape}"
        )


# --------------------------------------------------------------------------------------------------
# Writing


def save_episode(
    directory: Path,
    observations: npt.ArrayLike,
    actions: npt.ArrayLike,
    rewards: npt.ArrayLike,
    terminations: npt.ArrayLike,
    truncations: npt.ArrayLike,
) -> Path:
    """Add one episode to a dataset, after checking that it can be read back."""
    directory.mkdir(parents=True, exist_ok=True)
    values = (observations, actions, rewards, terminations, truncations)
    arrays = {key: np.asarray(value) for key, value in zip(KEYS, values)}
    taken = [int(path.stem[8:]) for path in directory.glob("episode-*.npz") if path.stem[8:].isdigit()]
    number = max(taken, default=-1) + 1
    _check(directory / f"episode-{number:06d}.npz", arrays)
    temporary = directory / f".episode-{os.getpid()}.tmp"
    with temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    while True:
        path = directory / f"episode-{number:06d}.npz"
        try:
            os.link(temporary, path)  # whole or not at all, and never in the place of another recorder's
        except FileExistsError:
            number += 1
        except OSError:  # a file system without links
            os.replace(temporary, path)
            return path
        else:
            temporary.unlink()
            return path


def save_facts(directory: Path, env: str, actions: tuple[str, ...] = ()) -> None:
    """Name the environment and, if given, the actions."""
    directory.mkdir(parents=True, exist_ok=True)
    facts = {"env": env, **({"actions": list(actions)} if actions else {})}
    (directory / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


class RecordEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Write every episode that is played in ``env``, by whomever, to a dataset; the last one when it is closed."""

    def __init__(self, env: gymnasium.Env[Any, Any], directory: Path | str) -> None:
        super().__init__(env)
        self._directory = Path(directory)
        self._observations: list[Any] = []
        self._steps: list[tuple[int, float, bool, bool]] = []
        save_facts(self._directory, env.spec.id if env.spec else type(env.unwrapped).__name__)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._write()
        observation, info = self.env.reset(seed=seed, options=options)
        self._observations = [np.array(observation)]
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._observations.append(np.array(observation))
        first = int(getattr(self.action_space, "start", 0))  # environments may count from elsewhere
        self._steps.append((int(action) - first, float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            self._write()
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        self._write()
        super().close()

    def _write(self) -> None:
        if self._steps:
            save_episode(self._directory, np.stack(self._observations), *map(np.array, zip(*self._steps)))
        self._observations, self._steps = [], []


def from_minari(dataset: Any, directory: Path) -> int:
    """Write the episodes of a loaded Minari dataset (``minari.load_dataset``); returns how many there are.

    Of observations that are dictionaries the ``image`` is taken.
    """
    count = 0
    for observations, episode in _minari_episodes(dataset):
        ends = episode.terminations, episode.truncations
        save_episode(directory, observations, episode.actions, episode.rewards, *ends)
        count += 1
    env = getattr(getattr(dataset, "env_spec", None), "id", None) or getattr(dataset.spec, "dataset_id", "minari")
    save_facts(directory, str(env))
    return count


def _minari_episodes(dataset: Any) -> Iterator[tuple[npt.NDArray[Any], Any]]:
    for episode in dataset.iterate_episodes():
        observations = episode.observations
        if isinstance(observations, Mapping):
            if "image" not in observations:
                raise ConfigError(f"observations with the parts {', '.join(observations)} have no image to take")
            observations = observations["image"]
        yield np.asarray(observations), episode


def main(arguments: list[str]) -> int:
    """``python -m twm.dataset MINARI-DATASET DIR``: convert a Minari dataset that is installed locally."""
    if len(arguments) != 2:
        print("usage: python -m twm.dataset MINARI-DATASET DIR", file=sys.stderr)
        return 2
    try:
        import minari
    except ImportError:
        print("error: this needs Minari: pip install minari", file=sys.stderr)
        return 1
    print(f"{from_minari(minari.load_dataset(arguments[0]), Path(arguments[1]))} episodes in {arguments[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
