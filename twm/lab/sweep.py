"""Run a sweep on Ray: embedded on this machine, or on a cluster.

Ray decides where a run goes and starts it again elsewhere when its process or its machine is lost; the run
directory, on storage that all machines see, holds everything it needs to go on. So a run does not depend on where it
runs, and the sweep itself keeps no state but the files: the same command again goes on where it stopped.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from twm.child import ChildLost
from twm.config import ConfigError, from_dict, to_dict
from twm.lab.plan import LOCK, Plan, PlannedRun, check, record, refuse_foreign
from twm.lab.status import Status, status_of
from twm.train.files import RunError, reporting, write_json

RESTARTS = 10
"""How often a run is started again after its process or machine was lost, or its memory ran out."""

OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
NO_MEMORY = ("can't allocate memory", "MemoryError")  # how torch on a CPU, and a partner, say it


def run_sweep(
    plan: Plan,
    out: Path,
    *,
    address: str | None = None,
    on_progress: Callable[[list[Status]], None] | None = None,
    poll_seconds: float = 2.0,
) -> list[Status]:
    """Run what is not finished yet; returns where every run stands at the end."""
    runs = check(plan)
    refuse_foreign(plan, out)
    waiting = [run for run in runs if not status_of(run, out).finished]
    if waiting:
        with _ray(address) as ray:
            _refuse_too_large(ray, plan)  # before anything is written: a refused plan binds nobody
            with _alone(out), _stopping_in_order(out):
                record(plan, out)
                _run_all(ray, plan, out.resolve(), waiting, runs, on_progress, poll_seconds)
    standing = [status_of(run, out) for run in runs]
    if on_progress is not None:
        on_progress(standing)
    return standing


def _run_all(
    ray: Any,
    plan: Plan,
    out: Path,
    waiting: list[PlannedRun],
    runs: list[PlannedRun],
    on_progress: Callable[[list[Status]], None] | None,
    poll_seconds: float,
) -> None:
    task = ray.remote(_train).options(
        num_cpus=plan.cpus_per_run,
        num_gpus=plan.gpus_per_run,
        max_retries=RESTARTS,
        retry_exceptions=[*OUT_OF_MEMORY, ChildLost],
    )
    pending = {}
    for run in waiting:
        failure(run.directory(out)).unlink(missing_ok=True)  # the same command again is a new attempt
        pending[task.remote(to_dict(run.config), str(run.directory(out)))] = run
    while pending:
        done, _ = ray.wait(list(pending), num_returns=1, timeout=poll_seconds)
        for reference in done:
            run = pending.pop(reference)
            try:
                ray.get(reference)
            except ray.exceptions.RayError as error:
                _record_failure(run.directory(out), _reason(ray, error))
        if on_progress is not None:
            on_progress([status_of(run, out) for run in runs])


def _train(config: dict[str, Any], directory: str) -> None:
    """On some machine of the cluster: one run, from wherever it stands, to its end."""
    from twm.train.loop import train
    from twm.train.rundir import RunInUse

    for _ in range(60):  # a machine cut off from the cluster may still be at it for a moment
        try:
            train(from_dict(config), Path(directory), quiet=True)
            return
        except RunInUse:
            time.sleep(1.0)
        except KeyboardInterrupt:  # a signal: the run is saved, and Ray starts what it takes for lost again
            os._exit(1)
        except (*OUT_OF_MEMORY, ChildLost):
            raise  # perhaps its neighbour's fault: Ray starts it again, from its last checkpoint
        except (RunError, ConfigError) as error:
            _record_failure(Path(directory), str(error))
            return
        except Exception as error:  # whatever it is, it must not stop the others
            if any(text in str(error) for text in NO_MEMORY):
                raise MemoryError(str(error)) from error
            _record_failure(Path(directory), f"{type(error).__name__}: {error}", traceback.format_exc())
            return
    _record_failure(Path(directory), "another process kept the run directory locked")


def failure(directory: Path) -> Path:
    """Where the error of a run that failed for good is kept."""
    return directory / "failed.json"


def _record_failure(directory: Path, reason: str, details: str = "") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_json(failure(directory), {"error": " ".join(reason.split()) or "unknown", "details": details})


def _reason(ray: Any, error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    reason = lines[-1] if lines else type(error).__name__
    lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
    return f"lost {RESTARTS + 1} times: {reason}" if isinstance(error, lost) else reason


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Two sweeps in one directory would wait for each other's runs and take them for failed."""
    with reporting(f"cannot create the directory {out}"):
        out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another twm sweep is at work in {out}: watch it with twm sweep --status {out}, or stop it first"
            ) from error
        yield


@contextmanager
def _stopping_in_order(out: Path) -> Iterator[None]:
    """SIGTERM (Slurm, docker stop), which Ray would answer with a crash report, ends a sweep as Ctrl-C does."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()  # the only one that may handle signals
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the same command goes on with the sweep in {out}") from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


# --------------------------------------------------------------------------------------------------
# Ray


@contextmanager
def _ray(address: str | None) -> Iterator[Any]:
    """Ray, started here or connected to. What it prints stays off standard output.

    Without an address it is always an instance of its own ("local"): neither RAY_ADDRESS nor another cluster on this
    machine may turn a sweep that was to run here into one that runs elsewhere.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError('sweeps need Ray: pip install "twm[cluster]"') from error
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address in (None, "local"):
        cores = len(os.sched_getaffinity(0))
        settings |= {"address": "local", "num_cpus": cores, "object_store_memory": 128 * 2**20}
        settings |= {"include_dashboard": False}
        what, remedy = "cannot start Ray on this machine", "`ray stop` ends what an earlier one left"
    else:
        _refuse_unreachable(ray, str(address))
        settings |= {"address": address}
        what = f"cannot reach a Ray cluster at {address}"
        remedy = (
            "start one with `ray start --head`, check the address, give RAY_AUTH_MODE=token where it asks for a token, "
            "or leave --address out to run here"
        )
    try:
        ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ConfigError(f"{what}: {(str(error).splitlines() or [type(error).__name__])[0]}; {remedy}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _refuse_unreachable(ray: Any, address: str) -> None:
    """Ray itself retries for minutes; a port that nobody listens on can be told at once."""
    if address == "auto" or "://" in address:
        return
    host, _, port = address.rpartition(":")
    if host in ("localhost", "127.0.0.1"):  # a head node listens at the machine's own address, and Ray means that
        host = ray.util.get_node_ip_address()
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"nothing answers at --address {address} ({error}): expected HOST:PORT of a Ray head node, as `ray start "
            "--head` prints it"
        ) from error


def _refuse_too_large(ray: Any, plan: Plan) -> None:
    """A run that fits on no machine would wait for ever."""
    for resource, wanted, option in (
        ("CPU", plan.cpus_per_run, "--cpus-per-run"),
        ("GPU", plan.gpus_per_run, "--gpus-per-run"),
    ):
        most = max((node["Resources"].get(resource, 0) for node in ray.nodes() if node["Alive"]), default=0)
        if wanted > most:
            raise ConfigError(
                f"{option} {wanted:g} is more than any machine of the cluster has ({most:g} {resource}s): lower it"
            )
