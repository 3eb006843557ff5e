"""The whole circle on the toy environment, small: what a run leaves behind, and that interruptions change nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from twm.config import Config, ConfigError, preset, with_options
from twm.replay import Replay
from twm.train import checkpoint, metrics, rundir
from twm.train.averages import TrainingDiverged
from twm.train.loop import train
from twm.train.pretrain import real_returns
from twm.train.rundir import RunInUse
from twm.train.tree import pack

CRASH_TEST = Path(__file__).parents[2] / "scripts" / "crash_test"


def small(**options: Any) -> Config:
    """A run of a few seconds that passes through every phase."""
    settings = {
        "threads": 1,
        "env_options.size": 16,
        "world_model.batch_size": 4,
        "world_model.sequence_length": 4,
        "world_model.channels": 4,
        "world_model.layers": 1,
        "world_model.width": 16,
        "world_model.heads": 2,
        "policy.batch_size": 8,
        "policy.horizon": 3,
        "train.interactions": 60,
        "train.prefill": 40,
        "train.samples": 1600,
        "train.pretrain_samples": 480,
        "train.eval_every": 10,
        "train.eval_episodes": 2,
        "train.final_episodes": 2,
        "train.log_every": 5,
        "train.checkpoint_every": 7,
    }
    return with_options(preset("tiny"), settings | {key.replace("__", "."): value for key, value in options.items()})


def final_state(run: Path) -> dict[str, Any]:
    loaded = checkpoint.load_latest(run / "checkpoints")
    assert loaded is not None
    loaded.state.pop("seconds")
    rest, tensors = pack(loaded.state)
    return {**tensors, "rest": rest}


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, optimisers, generators, counters, metrics and evaluation, bit for bit; timings aside."""
    a, b = final_state(one), final_state(other)
    assert a.keys() == b.keys()
    for name, value in a.items():
        same = torch.equal(value, b[name]) if isinstance(value, torch.Tensor) else value == b[name]
        assert same, name
    logs = [metrics.without_times(metrics.read(run / "metrics.jsonl")) for run in (one, other)]
    assert logs[0] == logs[1]
    evaluations = [json.loads((run / "eval.json").read_text()) for run in (one, other)]
    for evaluation in evaluations:
        evaluation.pop("seconds")
    assert evaluations[0] == evaluations[1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    train(small(), out, quiet=True)
    return out


def test_a_run_passes_through_every_phase(finished: Path) -> None:
    """40 random steps; pretraining 480 samples of 16 each: 18, 9 and 3 updates; then 1,120 of 40: 28 updates."""
    records = metrics.read(finished / "metrics.jsonl")
    assert {r["interactions"] for r in records if "pretrain/observation" in r} == {40}
    assert {key: r[key] for r in records for key in r if key.startswith("pretrain/")} == {
        "pretrain/observation": 18,
        "pretrain/dynamics": 9,
        "pretrain/policy": 3,
    }
    assert (records[-1]["interactions"], records[-1]["updates"]) == (60, 28)
    assert [r["interactions"] for r in records if "eval/score_mean" in r] == [50]  # at 60 comes the final one
    losses = {"decoder", "entropy", "consistency", "latent", "reward", "discount"}
    assert losses | {"policy_actor", "policy_critic", "policy_entropy"} <= {
        key.removeprefix("loss/") for key in records[-1] if key.startswith("loss/")
    }


def test_a_run_directory_says_what_was_done(finished: Path) -> None:
    evaluation = json.loads((finished / "eval.json").read_text())
    assert len(evaluation["episodes"]) == len(evaluation["random_episodes"]) == 2
    assert evaluation["mean"] == np.mean(evaluation["episodes"])
    assert evaluation["optimal_return"] == 5.0
    assert evaluation["interactions"] == 60
    machine = json.loads((finished / "machine.json").read_text())
    assert machine["torch"] == torch.__version__
    assert len(list((finished / "checkpoints").iterdir())) <= 4  # the last three and the best


def test_the_same_seed_gives_the_same_run(finished: Path, tmp_path: Path) -> None:
    train(small(), tmp_path / "again", quiet=True)
    assert_same_run(finished, tmp_path / "again")


def test_another_seed_gives_another_run(finished: Path, tmp_path: Path) -> None:
    train(small(seed=1), tmp_path / "other", quiet=True)
    with pytest.raises(AssertionError):
        assert_same_run(finished, tmp_path / "other")


def test_a_finished_run_is_not_run_again(finished: Path) -> None:
    before = (finished / "metrics.jsonl").read_bytes()
    assert train(small(), finished, quiet=True)["mean"] == json.loads((finished / "eval.json").read_text())["mean"]
    assert (finished / "metrics.jsonl").read_bytes() == before


def contents(run: Path) -> dict[Path, bytes]:
    """Of all files but the lock, which names the process that took it."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_finished_run_stays_with_the_code_that_made_it(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(finished)
    monkeypatch.setattr(rundir, "machine", lambda: {"torch": "another"})
    train(small(), finished, quiet=True)
    assert contents(finished) == before


@pytest.mark.parametrize("weights", [False, True])
def test_a_copy_without_what_training_needs_is_not_harmed(finished: Path, tmp_path: Path, weights: bool) -> None:
    """As scripts/slim_run makes them: a score, with or without weights, but nothing to go on from."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    loaded = checkpoint.load_latest(run / "checkpoints")
    assert loaded is not None
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    if weights:
        kept = {key: loaded.state[key] for key in ("world_model", "policy", "counters", "replay")}
        checkpoint.save(run / "checkpoints", loaded.step, kept)
    before = contents(run)
    problem = "holds nothing under optimisers/" if weights else "it has no checkpoint"
    with pytest.raises(ConfigError, match=f"is finished and cannot go on: .*{problem}.*start a new run"):
        train(small(train__interactions=80), run, quiet=True)
    assert contents(run) == before


def interrupt_after(monkeypatch: pytest.MonkeyPatch, calls: int, where: str) -> None:
    """An exception, as abrupt as a kill, at the given call of a function of the loop."""
    import twm.train.loop as loop

    original, count = getattr(loop, where), [0]

    def interrupted(*arguments: Any) -> None:
        count[0] += 1
        if count[0] == calls:
            raise KeyboardInterrupt
        original(*arguments)

    monkeypatch.setattr(loop, where, interrupted)


@pytest.mark.parametrize(("where", "calls"), [("interact", 3), ("interact", 35), ("update", 1), ("update", 17)])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, calls: int
) -> None:
    with monkeypatch.context() as patch:
        interrupt_after(patch, calls, where)
        with pytest.raises(KeyboardInterrupt):
            train(small(), tmp_path / "run", quiet=True)
    train(small(), tmp_path / "run", quiet=True)
    assert_same_run(finished, tmp_path / "run")


def test_a_signal_saves_and_stops_between_two_updates(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import twm.train.loop as loop

    original, count = loop.update, [0]

    def update(run: Any) -> None:
        original(run)
        count[0] += 1
        if count[0] == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop, "update", update)
    with pytest.raises(KeyboardInterrupt):
        train(small(), tmp_path / "run", quiet=True)
    loaded = checkpoint.load_latest(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    assert loaded.state["counters"]["updates"] == 9
    monkeypatch.setattr(loop, "update", original)
    train(small(), tmp_path / "run", quiet=True)
    assert_same_run(finished, tmp_path / "run")


def test_an_environment_without_a_state_begins_a_new_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from twm.envs.catch import Catch

    monkeypatch.setattr(Catch, "save", lambda self: None)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 45, "interact")
        with pytest.raises(KeyboardInterrupt):
            train(small(), tmp_path / "run", quiet=True)
    result = train(small(), tmp_path / "run", quiet=True)
    assert "cannot save its state" in capsys.readouterr().err
    assert result["interactions"] == 60


def test_a_loss_that_is_no_number_stops_the_run_and_leaves_a_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample, calls = Replay.sample, [0]

    def poisoned(self: Replay, *arguments: Any, **options: Any) -> Any:
        batch, starts = sample(self, *arguments, **options)
        calls[0] += 1
        if calls[0] == 45:  # 30 in pretraining, then the 15th of the main loop
            batch.r[0, 2] = np.nan
        return batch, starts

    monkeypatch.setattr(Replay, "sample", poisoned)
    with pytest.raises(TrainingDiverged, match=r"loss/reward.* not finite at update 15: .* last checkpoint is intact"):
        train(small(), tmp_path / "run", quiet=True)
    loaded = checkpoint.load_latest(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    assert all(torch.isfinite(x).all() for x in pack(loaded.state)[1].values() if x.is_floating_point())


def test_options_that_contradict_a_run_are_refused_by_name(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"--policy.horizon: saved 3, given 4"):
        train(small(policy__horizon=4), finished, quiet=True)


def test_more_interactions_extend_a_run_at_the_same_ratio(tmp_path: Path) -> None:
    train(small(), tmp_path / "run", quiet=True)
    result = train(small(train__interactions=80), tmp_path / "run", quiet=True)
    assert result["interactions"] == 80
    records = metrics.read(tmp_path / "run" / "metrics.jsonl")
    assert records[-1]["updates"] == 56  # 28 over 20 interactions, so 56 over 40


def test_an_extension_that_is_interrupted_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation of the run as it was says nothing of what it is to become."""
    train(small(), tmp_path / "run", quiet=True)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 10, "interact")
        with pytest.raises(KeyboardInterrupt):
            train(small(train__interactions=80), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "eval.json").exists()
    saved = json.loads((tmp_path / "run" / "config.json").read_text())["train"]
    again = small(train__interactions=80, train__samples=saved["samples"])
    assert train(again, tmp_path / "run", quiet=True)["interactions"] == 80
    assert metrics.read(tmp_path / "run" / "metrics.jsonl")[-1]["updates"] == 56


def test_fewer_interactions_than_there_are_change_nothing(tmp_path: Path) -> None:
    train(small(), tmp_path / "run", quiet=True)
    before = {name: (tmp_path / "run" / name).read_bytes() for name in ("config.json", "eval.json")}
    with pytest.raises(ConfigError, match=r"already has 60 interactions: expected at least as many .* but got 50"):
        train(small(train__interactions=50), tmp_path / "run", quiet=True)
    assert {name: (tmp_path / "run" / name).read_bytes() for name in before} == before


def test_a_run_of_random_play_only(tmp_path: Path) -> None:
    result = train(small(train__interactions=40), tmp_path / "run", quiet=True)
    assert result["interactions"] == 40
    assert metrics.read(tmp_path / "run" / "metrics.jsonl")[-1]["updates"] == 0


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    out = tmp_path / "run"
    code = "import sys; from pathlib import Path; sys.path[:0] = [sys.argv[2]]\n" + (
        "from tests.train.test_loop import small, train\n"
        "train(small(train__interactions=5000), Path(sys.argv[1]), quiet=True)"
    )
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen([sys.executable, "-c", code, str(out), root], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.1)
        with pytest.raises(RunInUse, match=f"in use by process {process.pid}"):
            train(small(train__interactions=5000), out, quiet=True)
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_killed_runs_equal_their_twin(tmp_path: Path) -> None:
    """The crash test, short: really killed, also inside the writing of a checkpoint."""
    command = [sys.executable, str(CRASH_TEST), "--kills", "4", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal, bit for bit" in done.stdout


@pytest.mark.slow
def test_the_tiny_preset_learns_to_catch(tmp_path: Path) -> None:
    """Real learning, in minutes, as a user starts it: two thirds of the way from random play to the best possible.

    With three quarters of the preset's interactions at its pace. The whole preset goes all the way
    (results/tiny-explores); a policy that misses one column of seven has 3.5 of 5.
    """
    options = "--preset tiny --train.interactions 3000 --train.samples 3e6 --train.final-episodes 50 --quiet --json"
    command = [sys.executable, "-m", "twm.cli", "train", *options.split(), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    random, best = result["random_mean"], result["optimal_return"]
    assert result["mean"] >= random + 2 / 3 * (best - random)


def test_real_returns_by_hand() -> None:
    """γ = 0.5; the episode ends after the third step: R = 1 + 0.5·(0 + 0.5·4) = 2, 2, 4, then 3 + 0.5·1, 1."""
    rewards = np.array([1, 0, 4, 3, 1], np.float32)
    ended = np.array([False, False, True, False, False])
    assert real_returns(rewards, ended, 0.5).tolist() == [2, 2, 4, 3.5, 1]
