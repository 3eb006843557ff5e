"""The world model trained on recorded episodes: it learns, never sees what is held out, resumes exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import small

from twm import DreamEnv
from twm.cli import main
from twm.config import Config, ConfigError
from twm.dataset import save_episode
from twm.envs import make_env
from twm.train import checkpoint, metrics
from twm.train.averages import Averages
from twm.train.loop import train
from twm.train.offline import held_out_replay, saved_spec
from twm.train.rundir import RunDir

EPISODES = 12


def config(updates: int = 30, **options: Any) -> Config:
    """An update costs 4·5 + 6·4 = 44 samples."""
    budget = {"samples": updates * 44, "pretrain_samples": 0, "log_every": 10, "checkpoint_every": 10, "eval_every": 20}
    return small(**{f"train__{name}": value for name, value in budget.items()}, threads=1, **options)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random play in Catch, one frame an observation."""
    directory = tmp_path_factory.mktemp("data") / "catch-episodes"
    env, rng = make_env("Catch", small(env_options__stack=1).env_options, training=True), np.random.default_rng(0)
    for seed in range(EPISODES):
        steps, o = [], env.reset(seed=seed)
        ended = False
        while not ended:
            a = int(rng.integers(3))
            step = env.step(a)
            steps.append((o[0], a, step.reward, step.terminated, step.truncated))
            o, ended = step.observation, step.terminated or step.truncated
        save_episode(directory, *(np.array(column) for column in zip(*steps)))
    return directory


@pytest.fixture(scope="module")
def finished(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "offline"
    train(config(), out, dataset=dataset, quiet=True)
    return out


def test_every_tenth_episode_is_held_out(finished: Path, dataset: Path) -> None:
    """Episodes of Catch have 39 steps: eleven are trained on, the tenth is held out."""
    directory = RunDir.open(finished)
    found = json.loads((finished / "spec.json").read_text())
    assert found["steps"] == {"training": 11 * 39, "held_out": 39}
    held_out = held_out_replay(directory)
    with np.load(dataset / "episode-000009.npz") as tenth:
        assert np.array_equal(held_out.observations(np.arange(39))[:, -1], tenth["observations"])
        assert np.array_equal(held_out.rewards, tenth["rewards"].astype(np.float32))
    assert held_out.ended.tolist() == [False] * 38 + [True]
    assert saved_spec(directory).observation_shape == (2, 16, 16)
    assert directory.config()["env"] == "catch-episodes"


def test_losses_that_a_device_has_not_told_yet_are_logged(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU facts stay there until they are asked for."""
    add, settle = Averages.add, Averages.settle

    def without_waiting(self: Averages, where: str, facts: dict[str, torch.Tensor]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Averages, "settle", lambda _: None)
            add(self, where, facts)
        assert Averages.settle is settle

    monkeypatch.setattr(Averages, "add", without_waiting)
    train(config(), tmp_path / "run", dataset=dataset, quiet=True)
    records = metrics.read(tmp_path / "run" / "metrics.jsonl")
    assert [r["updates"] for r in records if "loss/decoder" in r] == [10, 20, 30]


def test_it_learns_and_says_so(finished: Path) -> None:
    records = metrics.read(finished / "metrics.jsonl")
    assert [r["updates"] for r in records if "loss/decoder" in r] == [10, 20, 30]
    held_out = [r["held_out/decoder"] for r in records if "held_out/decoder" in r]
    assert len(held_out) == 2  # after 20 updates and at the end
    assert held_out[1] < held_out[0]
    result = json.loads((finished / "eval.json").read_text())
    assert result["held_out"]["decoder"] == pytest.approx(held_out[1])
    assert (result["updates"], result["training_steps"], result["held_out_steps"]) == (30, 429, 39)


def test_the_total_is_the_weighted_sum(finished: Path) -> None:
    """entropy 5, consistency 0.01, reward 10, discount 50 (the paper's weights)."""
    loss = json.loads((finished / "eval.json").read_text())["held_out"]
    expected = loss["decoder"] + 5 * loss["entropy"] + 0.01 * loss["consistency"]
    expected += loss["latent"] + 10 * loss["reward"] + 50 * loss["discount"]
    assert loss["total"] == pytest.approx(expected, rel=1e-5)


def test_a_stopped_run_goes_on_exactly(finished: Path, dataset: Path, tmp_path: Path) -> None:
    """10 updates, then the rest without the dataset, which the run has copied: the same weights and records."""
    train(config(10), tmp_path / "run", dataset=dataset, quiet=True)
    train(config(30), tmp_path / "run", quiet=True)
    mine, theirs = (checkpoint.load_latest(path / "checkpoints") for path in (tmp_path / "run", finished))
    assert mine is not None
    assert theirs is not None
    assert mine.step == theirs.step == 30
    for part in ("world_model", "policy"):
        for name, value in theirs.state[part].items():
            assert torch.equal(value, mine.state[part][name]), name
    records = [metrics.without_times(metrics.read(path / "metrics.jsonl")) for path in (tmp_path / "run", finished)]
    assert [r for r in records[0] if "loss/decoder" in r] == [r for r in records[1] if "loss/decoder" in r]


def test_one_can_dream_in_it(finished: Path) -> None:
    env = DreamEnv(finished)
    o, _ = env.reset(seed=0)
    assert o.shape == (2, 16, 16)
    o, reward, *_ = env.step(np.int64(1))
    assert np.isfinite(reward)


def test_it_is_measured_on_what_was_held_out(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """38 of the 39 held-out steps have a next one; the episode's only end is that of the last."""
    assert main(["eval", str(finished), "--world-model", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["held_out"]["steps"], found["held_out"]["episodes"]) == (39, 1)
    assert found["held_out"]["horizons"]["1"]["starts"] == 38
    assert found["held_out"]["ends"]["happened"] == 1
    assert main(["eval", str(finished), "--world-model"]) == 0
    assert "39 fresh steps of held-out episodes" in capsys.readouterr().out


def test_there_is_no_policy_to_export(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(finished)]) == 1
    assert "it has no policy to export" in capsys.readouterr().err


def test_too_little_is_refused(dataset: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    few.mkdir()
    (few / "a.npz").write_bytes((dataset / "episode-000000.npz").read_bytes())
    with pytest.raises(ConfigError, match=r"the training episodes \(1 in all, every tenth held out\) have 0 steps"):
        train(config(), tmp_path / "run", dataset=few, quiet=True)


def test_without_episodes_there_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    from twm.train.offline import train_offline

    with pytest.raises(ConfigError, match="has no episodes yet: give --dataset DIR"):
        train_offline(config(), None, tmp_path / "run", quiet=True)


def test_every_metric_is_explained(finished: Path) -> None:
    glossary = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()
    keys = {key for record in metrics.read(finished / "metrics.jsonl") for key in record}
    keys |= json.loads((finished / "eval.json").read_text()).keys()
    assert not [key for key in keys if f"`{key}`" not in glossary]
