"""World model quality: each number against a plain computation, and nothing made up where there is nothing."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from small import image_spec, small, vector_spec

from twm.agent import Agent, build
from twm.analysis import dreaming, quality, quality_figures
from twm.analysis.recording import Episode
from twm.config import ConfigError


def an_agent() -> Agent:
    torch.manual_seed(0)
    agent = build(small(), image_spec())
    agent.world_model.eval()
    return agent


def an_episode(steps: int, seed: int, *, terminated: bool = True) -> Episode:
    rng = np.random.default_rng(seed)
    frames = rng.integers(256, size=(steps + 1, 16, 16), dtype=np.uint8)
    o = np.stack([frames[:-1], frames[1:]], axis=1)  # (steps, 2, 16, 16)
    return Episode(o, rng.integers(3, size=steps), rng.normal(size=steps).astype(np.float32), terminated)


def test_correlation_by_hand() -> None:
    assert quality.correlation(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])) == pytest.approx(1)
    assert quality.correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 1.0])) == pytest.approx(0)
    assert quality.correlation(np.array([1.0, 2.0]), np.array([5.0, 5.0])) is None
    assert quality.correlation(np.array([1.0]), np.array([1.0])) is None


def test_ends_by_hand() -> None:
    """Three ends, four predicted, two of them right."""
    really = np.array([1, 1, 1, 0, 0, 0], bool)
    said = np.array([1, 1, 0, 1, 1, 0], bool)
    assert quality._ends(really, said) == {"happened": 3, "predicted": 4, "precision": 0.5, "recall": 2 / 3}
    none = np.zeros(3, bool)
    assert quality._ends(none, none) == {"happened": 0, "predicted": 0, "precision": None, "recall": None}


def test_starts_and_errors_against_a_plain_loop() -> None:
    """Every start by itself, every frame decoded on its own."""
    agent, episodes = an_agent(), [an_episode(7, 0), an_episode(4, 1, terminated=False)]
    model = agent.world_model
    found = quality.measure(agent, {"policy": episodes}, horizons=(1, 3))["policy"]
    for k in (1, 3):
        guess, copy, reconstruction, agree, r, r_hat = [], [], [], [], [], []
        for episode in episodes:
            z = dreaming.encode(model, episode.o)
            newest = episode.o[:, -1] / 255.0
            for t in range(len(episode)):
                context = dreaming.contexts(episode, z, [t])
                dream = dreaming.dream(model, context, k, dreaming.recorded(episode, [t]), temperature=0.0)
                if t + k <= len(episode):
                    r.append(float(episode.r[t + k - 1]))
                    r_hat.append(float(dream.r[0, k - 1]))
                if t + k < len(episode):
                    with torch.no_grad():
                        decoded = model.observation.decode(torch.stack([dream.z[0, k], z[t + k]]))
                        decoded = model.observation.arrange(decoded)[:, -1]
                    pictures = decoded.clamp(0, 1).double().numpy()
                    guess.append(((pictures[0] - newest[t + k]) ** 2).mean())
                    reconstruction.append(((pictures[1] - newest[t + k]) ** 2).mean())
                    copy.append(((newest[t] - newest[t + k]) ** 2).mean())
                    agree.append(float((dream.z[0, k] * z[t + k]).sum()) / 3)
        values = found["horizons"][str(k)]
        assert values["starts"] == len(guess) == (7 - k) + (4 - k)
        assert values["mse"] == pytest.approx(np.mean(guess), rel=1e-5)
        assert values["mse_copy"] == pytest.approx(np.mean(copy), rel=1e-5)
        assert values["mse_reconstruction"] == pytest.approx(np.mean(reconstruction), rel=1e-5)
        assert values["latent_accuracy"] == pytest.approx(np.mean(agree), rel=1e-5)
        assert values["reward_correlation"] == pytest.approx(np.corrcoef(r, r_hat)[0, 1], abs=1e-4)
        assert len(r) == (7 - k + 1) + (4 - k + 1)
    assert found["ends"]["happened"] == 1  # the second episode was cut off
    assert (found["steps"], found["episodes"]) == (11, 2)


def test_a_horizon_beyond_every_episode_has_no_numbers() -> None:
    found = quality.measure(an_agent(), {"policy": [an_episode(6, 0)]}, horizons=(1, 50))["policy"]["horizons"]["50"]
    assert found["starts"] == 0
    assert all(value is None for key, value in found.items() if key != "starts")


def test_both_is_all_starts_together() -> None:
    sources = {"policy": [an_episode(7, 0)], "random": [an_episode(5, 1), an_episode(9, 2)]}
    found = quality.measure(an_agent(), sources, horizons=(1,))
    assert [found[name]["steps"] for name in ("policy", "random", "both")] == [7, 14, 21]
    mse = {name: found[name]["horizons"]["1"]["mse"] for name in found}
    assert mse["both"] == pytest.approx((6 * mse["policy"] + 12 * mse["random"]) / 18)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, sources = an_agent(), {"policy": [an_episode(9, 0)]}
    whole = quality.measure(agent, sources, horizons=(2,))["policy"]["horizons"]["2"]
    monkeypatch.setattr(dreaming, "CHUNK", 4)
    parts = quality.measure(agent, sources, horizons=(2,))["policy"]["horizons"]["2"]
    for key in ("starts", "mse", "mse_copy", "latent_accuracy", "return_correlation"):
        assert parts[key] == pytest.approx(whole[key], rel=1e-5)


def test_vectors_are_measured_on_the_models_scale() -> None:
    """Two numbers a frame, stacked twice: the copy's error is that of the newest two, through symlog."""
    spec = vector_spec(2)
    spec = type(spec)(spec.name, (2,), 2, spec.actions)
    torch.manual_seed(0)
    agent = build(small(), spec)
    o = np.array([[0, 0, 0, 0], [0, 0, math.e - 1, 0]], np.float32)
    episode = Episode(o, np.zeros(2, np.int64), np.zeros(2, np.float32), True)
    found = quality.measure(agent, {"policy": [episode]}, horizons=(1,))["policy"]["horizons"]["1"]
    assert found["mse_copy"] == pytest.approx(0.5)  # symlog(e - 1) = 1: (1² + 0²) / 2
    assert found["reward_correlation"] is None


def test_of_a_run(small_run: Path) -> None:
    found = quality.world_model_quality(small_run, steps=90, seed=0)
    assert (found["steps"], found["seed"], found["interactions"]) == (90, 0, 120)
    assert (found["policy"]["steps"], found["random"]["steps"], found["both"]["steps"]) == (45, 45, 90)
    assert list(found["policy"]["horizons"]) == ["1", "5", "15", "50"]
    assert found["policy"]["horizons"]["50"]["mse"] is None  # episodes have 39 steps
    assert 0 < found["random"]["horizons"]["15"]["mse"] < 1
    assert found == quality.world_model_quality(small_run, steps=90, seed=0)
    with pytest.raises(ConfigError, match="at least 2, got 1"):
        quality.world_model_quality(small_run, steps=1, seed=0)


def test_table_and_figure_leave_out_what_is_not_there() -> None:
    found = quality.measure(an_agent(), {"policy": [an_episode(6, 0)], "random": [an_episode(6, 1)]}, (1, 50))
    rows = quality_figures.quality_table(found)
    assert [(row["Episodes of"], row["Horizon"]) for row in rows] == [
        (source, k) for source in ("policy", "random", "both") for k in (1, 50)
    ]
    panels = quality_figures.quality_figure(found).axes
    assert len(panels) == 2
    assert all(len(line.get_xdata()) == 1 for line in panels[0].lines)
