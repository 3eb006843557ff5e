"""Runs read from disk: newest weights, replay, curves, films, nothing from elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from twm.config import ConfigError
from twm.export import write_weights
from twm.studio import library, starts
from twm.studio.dream import Dream
from twm.studio.library import Run, thin
from twm.train import checkpoint
from twm.train.checkpoint import CheckpointError
from twm.train.evaluate import load_agent
from twm.train.files import RunError


@pytest.fixture
def copy(run_path: Path, tmp_path: Path) -> Path:
    """A run that a test may change."""
    shutil.copytree(run_path, tmp_path / "run")
    return tmp_path / "run"


def test_the_newest_checkpoint_is_picked_up(copy: Path) -> None:
    newest = copy / "checkpoints" / "step-000000160"
    shutil.move(newest, copy / "aside")
    run = Run(copy, device="cpu")
    assert run.refresh()
    model, replay = run.model(), run.replay()
    assert model is not None
    assert replay is not None
    assert (model.step, len(replay)) == (120, 120) or (model.step, len(replay)) == (80, 80)
    assert not run.refresh()
    shutil.move(copy / "aside", newest)
    assert run.refresh()
    later = run.model()
    assert later is not None
    assert later.step == 160
    assert len(run.replay() or []) == 160
    assert model.step < 160  # a dream that goes on keeps its own


def test_a_checkpoint_that_is_replaced_is_picked_up(copy: Path) -> None:
    """As in the pretraining: the number of interactions stays, the weights do not."""
    run = Run(copy, device="cpu")
    assert run.refresh()
    before = run.model()
    assert before is not None
    assert before.updates is not None
    assert before.updates > 0
    loaded = checkpoint.load_latest(copy / "checkpoints")
    assert loaded is not None
    state = loaded.state
    state["counters"]["updates"] = 0
    next(iter(state["world_model"].values())).add_(1)
    checkpoint.save(copy / "checkpoints", 160, state)
    assert run.refresh()
    after = run.model()
    assert after is not None
    assert (after.step, after.updates) == (160, 0)
    assert after.fingerprint() != before.fingerprint()
    assert not run.refresh()
    shutil.rmtree(min((copy / "checkpoints").glob("step-*")))  # an old one goes, the newest is what it was
    assert not run.refresh()


def test_an_export_can_be_dreamt_of(run_path: Path, tmp_path: Path) -> None:
    agent, _, step = load_agent(run_path, device="cpu")
    write_weights(agent, tmp_path / "weights.safetensors", step)
    for name in ("config.json", "machine.json"):
        shutil.copy(run_path / name, tmp_path)
    run = Run(tmp_path, device="cpu")
    assert run.refresh()
    model = run.model()
    assert model is not None
    assert model.step == 160
    assert run.replay() is None
    assert not run.refresh()


def test_the_shipped_run_dreams() -> None:
    run = Run(library.demo_run(), device="cpu")
    run.refresh()
    model, replay = run.model(), run.replay()
    assert model is not None
    assert replay is not None
    dream = Dream(model, starts.from_replay(model, replay, {"kind": "replay", "index": len(replay) // 2}))
    first = dream.frames([dream.now])
    for _ in range(5):
        dream.step([None])
    assert (dream.frames([dream.now]) != first).any()


def test_a_run_that_has_only_begun(copy: Path) -> None:
    for path in (copy / "checkpoints").iterdir():
        shutil.rmtree(path)
    (copy / "metrics.jsonl").unlink()
    (copy / "eval.json").unlink()
    run = Run(copy, device="cpu")
    assert not run.refresh()
    assert run.model() is None
    assert run.replay() is None
    assert run.curves(["loss/decoder"]) == {"keys": [], "records": 0, "curves": {"loss/decoder": []}}
    assert run.visits()["entries"] == 0
    assert run.facts()["evaluation"] is None
    assert run.summary()["finished"] is False


def test_damaged_checkpoints_are_reported(copy: Path) -> None:
    for path in (copy / "checkpoints").iterdir():
        (path / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        Run(copy, device="cpu").refresh()


def test_weights_of_another_version_are_reported(copy: Path) -> None:
    loaded = checkpoint.load_latest(copy / "checkpoints")
    assert loaded is not None
    loaded.state["world_model"].popitem()
    checkpoint.save(copy / "checkpoints", 160, loaded.state)
    with pytest.raises(RunError, match="do not fit this version of twm"):
        Run(copy, device="cpu").refresh()


def test_without_replay_dreams_begin_elsewhere(copy: Path) -> None:
    shutil.rmtree(copy / "replay")
    run = Run(copy, device="cpu")
    assert run.refresh()
    assert run.replay() is None


def test_nothing_is_written(copy: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    run = Run(copy, device="cpu")
    run.refresh()
    run.facts()
    run.curves(["loss/decoder"])
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def test_the_replay_is_that_of_the_training(run: Run, run_path: Path) -> None:
    replay = run.replay()
    assert replay is not None
    frames = np.load(run_path / "replay" / "frames.npy")
    np.testing.assert_array_equal(replay.observations([0, 7, 159])[:, 0], frames[[0, 7, 159], 0])
    loaded = checkpoint.load_latest(run_path / "checkpoints")
    assert loaded is not None
    np.testing.assert_array_equal(replay.visits, loaded.state["replay"]["visits"])


def test_curves(copy: Path) -> None:
    lines = [
        {"interactions": 10, "loss/x": 1.0, "time/elapsed": 2.5, "note": "text"},
        {"interactions": 20, "loss/x": None, "time/elapsed": 3.5},
        {"interactions": 20, "eval/score_mean": 7},
        {"interactions": 30, "loss/x": 0.5, "time/elapsed": 4.5},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (copy / "metrics.jsonl").write_text(text + '{"interactions": 40, "loss/')  # being written at this moment
    found = Run(copy).curves(["loss/x", "eval/score_mean", "none"])
    assert found["keys"] == ["eval/score_mean", "interactions", "loss/x", "time/elapsed"]
    assert found["curves"] == {
        "loss/x": [(10, 2.5, 1.0), (30, 4.5, 0.5)],
        "eval/score_mean": [(20, 3.5, 7)],
        "none": [],
    }


def test_curves_follow_the_file(copy: Path) -> None:
    run = Run(copy)
    before = run.curves([])["records"]
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"interactions": 170, "loss/decoder": 1.0}\n')
    assert run.curves([])["records"] == before + 1


def test_thin() -> None:
    points = [(float(i), 0.0, 0.0) for i in range(100)]
    assert [p[0] for p in thin(points, 4)] == [0, 33, 66, 99]
    assert thin(points, 100) is points


def test_visits_by_hand(run: Run) -> None:
    found = run.visits()
    replay = run.replay()
    assert replay is not None
    assert found["entries"] == 160
    assert found["total"] == int(replay.visits.sum())
    widths = np.diff(found["edges"])
    assert (np.array(found["means"]) * widths).sum() == pytest.approx(found["total"])


def test_facts_mark_what_differs_from_the_paper(run: Run) -> None:
    options = {option["option"]: option for option in run.facts()["options"]}
    assert options["world_model.layers"] == {
        "option": "world_model.layers",
        "value": "2",
        "paper": "10",
        "differs": True,
    }
    assert options["policy.discount"]["differs"] is False


def test_the_film_strip(run: Run) -> None:
    replay = run.replay()
    assert replay is not None
    facts, frames = library.strip(replay, 36, 2, 3)
    assert facts["indices"] == [36, 38, 40]
    assert facts["episodes"] == [1, 1, 2]
    assert facts["since"] == [36, 38, 1]
    assert facts["rewards"][1] == pytest.approx(float(replay.rewards[38] + replay.rewards[39]))
    np.testing.assert_array_equal(frames, replay.observations([36, 38, 40])[:, -1:])
    facts, frames = library.strip(replay, 158, 8, 24)
    assert facts["indices"] == [158]


def test_episodes(run: Run) -> None:
    replay = run.replay()
    assert replay is not None
    episodes = library.last_episodes(replay)
    assert [e["first"] for e in episodes] == [156, 117, 78, 39, 0]
    assert episodes[-1]["steps"] == 39
    assert episodes[-1]["score"] == pytest.approx(float(replay.rewards[:39].sum()))


def test_films_of_the_run_only(copy: Path, tmp_path: Path) -> None:
    outside = tmp_path / "secret.mp4"
    outside.write_bytes(b"secret")
    (copy / "films").mkdir()
    (copy / "films" / "a.MP4").write_bytes(b"a")
    (copy / "b.gif").write_bytes(b"b")
    (copy / "notes.txt").write_text("no film")
    (copy / "link.mp4").symlink_to(outside)
    (copy / "away").symlink_to(tmp_path, target_is_directory=True)
    assert {path.name for path in Run(copy).films()} == {"a.MP4", "b.gif"}


def test_no_run_and_no_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "DEMO", tmp_path)
    with pytest.raises(ConfigError, match=r"train one .* and give its directory, twm studio RUN"):
        library.demo_run()
    with pytest.raises(ConfigError, match="is not a run directory"):
        Run(tmp_path)
