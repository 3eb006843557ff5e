"""Sweeps on a real Ray: embedded, and on two nodes of which one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.train.test_loop import assert_same_run
from twm.config import ConfigError, from_dict
from twm.lab.plan import Plan, make_plan, record
from twm.lab.status import Status, status_of, sweep_status, table
from twm.lab.sweep import _alone, _ray, _reason, run_sweep
from twm.train.loop import train

ray = pytest.importorskip("ray", reason="sweeps need Ray: pip install 'twm[cluster]'")
# One group, one worker of pytest-xdist: several Rays at a time are possible (see below), but slow.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

SMALL = {
    "world_model.batch_size": 4,
    "world_model.sequence_length": 4,
    "world_model.channels": 4,
    "world_model.layers": 1,
    "world_model.width": 16,
    "world_model.heads": 2,
    "policy.batch_size": 8,
    "policy.horizon": 3,
    "train.interactions": 120,
    "train.prefill": 40,
    "train.samples": 6000,
    "train.pretrain_samples": 480,
    "train.eval_every": 40,
    "train.eval_episodes": 2,
    "train.final_episodes": 2,
    "train.checkpoint_every": 10,
}


def small_plan(seeds: int, **options: Any) -> Plan:
    return make_plan(preset="tiny", envs=["Catch"], seeds=seeds, options={**SMALL, **options})


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of three runs, embedded."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    standing = run_sweep(small_plan(3), out, poll_seconds=0.2)
    assert [run.state for run in standing] == ["done"] * 3
    return out


def test_a_run_of_a_sweep_equals_the_same_run_alone(swept: Path, tmp_path: Path) -> None:
    run = swept / "runs" / "Catch" / "base" / "seed1"
    config = from_dict(json.loads((run / "config.json").read_text()))
    train(config, tmp_path / "alone", quiet=True)
    assert_same_run(run, tmp_path / "alone")


def test_the_same_command_again_runs_nothing(swept: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in swept.rglob("*.safetensors")}
    run_sweep(small_plan(3), swept)
    assert {path: path.stat().st_mtime_ns for path in swept.rglob("*.safetensors")} == before


def test_status_is_read_from_the_files(swept: Path) -> None:
    standing = sweep_status(swept)
    assert [run.interactions for run in standing] == [120] * 3
    assert table(standing).splitlines()[-1] == "3 done"


def test_a_run_that_fails_is_recorded_and_does_not_stop_the_others(tmp_path: Path) -> None:
    plan = small_plan(2)
    bad = plan.runs()[0].directory(tmp_path / "out")
    bad.mkdir(parents=True)
    sweep = {"preset": "tiny", "envs": ["Catch"], "seeds": 2, "set": SMALL}
    (tmp_path / "out" / "sweep.json").write_text(json.dumps(sweep))
    (bad / "precious.txt").write_text("not a run")
    standing = run_sweep(plan, tmp_path / "out", poll_seconds=0.2)
    assert [run.state for run in standing] == ["failed", "done"]
    assert "not a run directory and not empty" in str(standing[0].error)


FORGETFUL = """
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

class Forgetful(CartPoleEnv):
    \"\"\"Runs out of memory at its hundredth step, once.\"\"\"

    steps = 0

    def step(self, action):
        Forgetful.steps += 1
        marker = Path(__file__).with_name("marker")
        if Forgetful.steps == 100 and not marker.exists():
            marker.touch()
            raise MemoryError("once")
        return super().step(action)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_and_a_lack_of_memory_are_overcome(
    swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A run whose process is killed goes on from its checkpoint, with the same results; so does one out of memory."""
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = make_plan(preset="tiny", envs=["Catch", "forgetful:Forgetful"], seeds=1, options=SMALL)
    catch = plan.runs()[0].directory(tmp_path / "out")
    killed: list[int] = []

    def kill_catch(standing: list[Status]) -> None:
        if standing[0].state == "running" and standing[0].interactions >= 60 and not killed:
            killed.append(int((catch / "lock").read_text()))
            os.kill(killed[0], number)
            with pytest.raises(ConfigError, match="another twm sweep is at work in"), _alone(tmp_path / "out"):
                pass

    standing = run_sweep(plan, tmp_path / "out", on_progress=kill_catch, poll_seconds=0.1)
    assert killed, "the run was never seen at work: the test did not test anything"
    assert (tmp_path / "marker").exists(), "the environment never ran out of memory"
    assert [(run.state, run.error) for run in standing] == [("done", None)] * 2
    assert_same_run(swept / "runs" / "Catch" / "base" / "seed0", catch)


def test_a_signal_stops_the_command_and_its_runs(tmp_path: Path) -> None:
    """The end of a Slurm job: one line, no crash report, and no process is left at a run."""
    plan, out = small_plan(1, **{"train.interactions": 100_000, "train.samples": 5e6}), tmp_path / "out"
    record(plan, tmp_path / "plan")
    command = [sys.executable, "-m", "twm.cli", "sweep", "--plan", str(tmp_path / "plan" / "sweep.json"), "--out"]
    sweep = subprocess.Popen([*command, str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _wait_for(lambda: (out / "sweep.json").is_file() and sweep_status(out)[0].state == "running")
        sweep.terminate()
        stdout, stderr = sweep.communicate(timeout=300)
    finally:
        sweep.kill()
    assert (sweep.returncode, stdout) == (130, "")
    assert stderr.splitlines()[-1] == f"interrupted: the same command goes on with the sweep in {out}"
    assert "***" not in stderr
    _wait_for(lambda: sweep_status(out)[0].state == "stopped")


def _wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.1)


def test_a_plan_that_was_refused_binds_nobody(tmp_path: Path) -> None:
    plan = make_plan(preset="tiny", envs=["Catch"], seeds=1, options=SMALL, cpus_per_run=4096)
    with pytest.raises(ConfigError, match=r"--cpus-per-run 4096 is more than any machine of the cluster has"):
        run_sweep(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_second_sweep_changes_nothing_of_the_first(tmp_path: Path) -> None:
    plan = small_plan(1)
    with _alone(tmp_path / "out"):
        record(plan, tmp_path / "out")
        before = (tmp_path / "out" / "sweep.json").read_bytes()
        with pytest.raises(ConfigError, match="another twm sweep is at work"):
            run_sweep(small_plan(2), tmp_path / "out")
    assert (tmp_path / "out" / "sweep.json").read_bytes() == before


def test_reasons_say_what_happened() -> None:
    ray = pytest.importorskip("ray")
    assert _reason(ray, ray.exceptions.WorkerCrashedError()).startswith("lost 11 times: ")
    assert not _reason(ray, ray.exceptions.TaskCancelledError()).startswith("lost")


def test_an_address_where_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing answers at --address 127.0.0.1:1 "):
        run_sweep(small_plan(1), tmp_path / "out", address="127.0.0.1:1")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, so that runs land on the two worker nodes, one CPU each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 100 * 2**20})
    try:
        yield cluster
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()


def test_embedded_is_its_own_ray_whatever_else_runs(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another cluster on this machine, named by RAY_ADDRESS and by Ray's own note of the last one, is left alone."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    with _ray(None) as embedded:
        assert embedded.get_runtime_context().gcs_address != cluster.address
        assert embedded.cluster_resources()["CPU"] == len(os.sched_getaffinity(0))
        assert len(embedded.nodes()) == 1
    for address in ("auto", f"localhost:{cluster.address.rpartition(':')[2]}"):  # still there, for who asks for it
        with _ray(address) as found:
            assert found.get_runtime_context().gcs_address == cluster.address


def test_a_lost_node_changes_nothing(swept: Path, cluster: Any, tmp_path: Path) -> None:
    """One of two nodes is killed while it runs; everything finishes, with the results of the undisturbed sweep."""
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20) for _ in range(2)]
    cluster.wait_for_nodes()
    plan, out = small_plan(3), tmp_path / "out"
    lost: list[float] = []

    def kill_one(standing: list[Status]) -> None:
        begun = [run for run in standing if run.state == "running" and run.interactions >= 40]
        if len(begun) == 2 and not lost:
            lost.append(time.monotonic())
            cluster.remove_node(nodes[0], allow_graceful=False)

    standing = run_sweep(plan, out, address=cluster.address, on_progress=kill_one, poll_seconds=0.1)
    assert lost, "no moment came at which both nodes were busy: the test did not test anything"
    assert [run.state for run in standing] == ["done"] * 3
    for run in plan.runs():
        assert_same_run(run.directory(swept), run.directory(out))
        assert status_of(run, out).finished
