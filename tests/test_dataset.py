"""Recorded episodes: what is read is what was written, and each thing that cannot be used is named."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from twm.config import ConfigError, EnvConfig
from twm.dataset import RecordEpisodes, from_minari, open_dataset, save_episode

OPTIONS = EnvConfig(size=16, stack=2)


def episode(steps: int = 4, size: int = 16, **changes: Any) -> dict[str, Any]:
    """Pictures whose brightness counts the steps; the last action ends the episode."""
    last = np.arange(steps) == steps - 1
    arrays = {
        "observations": np.full((steps + 1, size, size), np.arange(steps + 1)[:, None, None] * 10, np.uint8),
        "actions": np.arange(steps) % 3,
        "rewards": np.arange(steps) / 2,
        "terminations": last,
        "truncations": np.zeros(steps, bool),
    }
    return {**arrays, **changes}


def write(directory: Path, **changes: Any) -> Path:
    """Without the checks that save_episode makes."""
    np.savez(directory / "episode.npz", **episode(**changes))
    return directory


def test_reads_what_was_written(tmp_path: Path) -> None:
    save_episode(tmp_path, **episode())
    save_episode(tmp_path, **episode(2, terminations=[False, False], truncations=[False, True]))
    data = open_dataset(tmp_path, OPTIONS)
    assert [path.name for path in data.paths] == ["episode-000000.npz", "episode-000001.npz"]
    assert (data.spec.name, data.spec.frame_shape, data.spec.stack) == (tmp_path.name, (1, 16, 16), 2)
    assert data.spec.actions == ("0", "1", "2")
    assert data.steps == 6
    first, second = (data.episode(path) for path in data.paths)
    assert first.frames.shape == (4, 1, 16, 16)  # the observation behind the last action is not used
    assert first.frames[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert (first.a.tolist(), first.r.tolist()) == ([0, 1, 2, 0], [0.0, 0.5, 1.0, 1.5])
    assert (first.terminated, second.terminated) == (True, False)


def test_pictures_are_prepared_like_an_environments(tmp_path: Path) -> None:
    color = np.zeros((3, 32, 32, 3), np.uint8)
    color[..., 1] = 200  # green: 0.587 of gray
    save_episode(tmp_path, **episode(2, observations=color))
    data = open_dataset(tmp_path, OPTIONS)
    assert data.episode(data.paths[0]).frames[0, 0, 5, 5] == 117
    data = open_dataset(tmp_path, EnvConfig(size=16, gray=False))
    assert data.episode(data.paths[0]).frames[0, :, 5, 5].tolist() == [0, 200, 0]


def test_vectors_and_names(tmp_path: Path) -> None:
    save_episode(tmp_path, **episode(2, observations=np.array([[1.5, -2.0], [3.0, 4.0]])))
    (tmp_path / "dataset.json").write_text(json.dumps({"env": "Pong", "actions": ["STAY", "UP", "DOWN"]}))
    data = open_dataset(tmp_path, OPTIONS)
    assert (data.spec.name, data.spec.frame_shape, data.spec.actions) == ("Pong", (2,), ("STAY", "UP", "DOWN"))
    assert data.episode(data.paths[0]).frames.tolist() == [[1.5, -2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"actions": np.zeros(4)}, "continuous actions are not supported"),
        ({"actions": np.array([0, 1, -1, 0])}, "all from 0 up"),
        ({"rewards": np.zeros(3)}, r"rewards has shape \(3,\), but there are 4 actions"),
        ({"rewards": np.array([0, np.nan, 0, 0])}, "rewards holds values that are not finite"),
        ({"terminations": np.array([0, 1, 0, 1], bool)}, "write each episode to a file of its own"),
        ({"observations": np.zeros((6, 16, 16), np.uint8)}, "an observation for each of 4 actions, or one more, got 6"),
        ({"observations": np.zeros((4, 16, 16))}, "must be uint8 pictures .* but are float64"),
        ({"observations": np.array([{}] * 4)}, "cannot be read as an .npz of plain arrays: Object arrays"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        open_dataset(write(tmp_path, **changes), OPTIONS)


def test_more_faults(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no recorded episodes"):
        open_dataset(tmp_path, OPTIONS)
    np.savez(tmp_path / "a.npz", actions=np.zeros(3, int))
    with pytest.raises(ConfigError, match="lacks observations, rewards, terminations, truncations"):
        open_dataset(tmp_path, OPTIONS)
    (tmp_path / "a.npz").write_bytes(b"not a zip")
    with pytest.raises(ConfigError, match="cannot be read as an"):
        open_dataset(tmp_path, OPTIONS)
    (tmp_path / "a.npz").unlink()
    save_episode(tmp_path, **episode())
    save_episode(tmp_path, **episode(size=32))
    data = open_dataset(tmp_path, OPTIONS)
    with pytest.raises(ConfigError, match="put episodes of one kind into a dataset"):
        data.episode(data.paths[1])
    (tmp_path / "dataset.json").write_text('{"actions": ["STAY", "UP"]}')
    with pytest.raises(ConfigError, match="names 2 actions, but the episodes contain action 2"):
        open_dataset(tmp_path, OPTIONS)


def test_gymnasium_recordings(tmp_path: Path) -> None:
    """Two and a bit episodes of CartPole: the wrapper writes the last one, unfinished, when it is closed."""
    env = RecordEpisodes(gymnasium.make("CartPole-v1"), tmp_path)
    env.action_space.seed(0)
    steps, played = 0, []
    for seed in range(2):
        env.reset(seed=seed)
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            ended, steps = terminated or truncated, steps + 1
        played.append(steps)
    env.reset(seed=2)
    env.step(1)
    env.close()
    data = open_dataset(tmp_path, OPTIONS)
    assert data.spec.name == "CartPole-v1"
    assert data.steps == steps + 1
    episodes = [data.episode(path) for path in data.paths]
    assert [len(each.a) for each in episodes] == [played[0], played[1] - played[0], 1]
    assert [each.terminated for each in episodes] == [True, True, False]


def test_recording_never_writes_over_an_episode(tmp_path: Path) -> None:
    """One file deleted: the next gets a new number. Actions count from 0, wherever the environment begins."""

    class Shifted(gymnasium.ActionWrapper[Any, Any, Any]):
        action_space = gymnasium.spaces.Discrete(2, start=-1)

        def action(self, action: int) -> int:
            return action + 1

    env = RecordEpisodes(Shifted(gymnasium.make("CartPole-v1")), tmp_path)
    for seed in range(3):
        env.reset(seed=seed)
        env.step(-1)
        env.step(0)
    env.close()
    (tmp_path / "episode-000001.npz").unlink()
    kept = (tmp_path / "episode-000002.npz").read_bytes()
    env.reset(seed=3)
    env.step(-1)
    env.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dataset.json",
        "episode-000000.npz",
        "episode-000002.npz",
        "episode-000003.npz",
    ]
    assert (tmp_path / "episode-000002.npz").read_bytes() == kept
    data = open_dataset(tmp_path, OPTIONS)
    assert data.spec.num_actions == 2
    assert [data.episode(path).a.tolist() for path in data.paths] == [[0, 1], [0, 1], [0]]


class FakeMinari:
    """Minari's documented interface: iterate_episodes() gives EpisodeData; observations have one entry more."""

    spec = SimpleNamespace(dataset_id="toy/test-v0")
    env_spec = None

    def __init__(self, pictures_in_a_dictionary: bool) -> None:
        self._nested = pictures_in_a_dictionary

    def iterate_episodes(self) -> Any:
        for _ in range(2):
            arrays = episode(3)
            if self._nested:
                arrays["observations"] = {"image": arrays["observations"], "mission": ["go"] * 4}
            yield SimpleNamespace(id=0, infos={}, **arrays)


@pytest.mark.parametrize("nested", [False, True])
def test_minari_datasets(tmp_path: Path, nested: bool) -> None:
    assert from_minari(FakeMinari(nested), tmp_path) == 2
    data = open_dataset(tmp_path, OPTIONS)
    assert (data.spec.name, data.steps, len(data.paths)) == ("toy/test-v0", 6, 2)
    assert data.episode(data.paths[1]).frames[:, 0, 0, 0].tolist() == [0, 10, 20]
