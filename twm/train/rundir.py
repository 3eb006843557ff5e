"""The directory of a run: what lies where, who may write, and whether a command continues it or contradicts it.

    config.json      every option, complete           eval.json       scores of the last evaluation
    metrics.jsonl    one record per log interval      machine.json    code version and machine
    checkpoints/     see checkpoint.py                replay/         experience
    lock             held by the process that writes  held_out/       recorded episodes only (offline.py)

Reading needs no lock: every file but the log is replaced whole, and the log only grows.
"""

from __future__ import annotations

import fcntl
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import twm
from twm import native
from twm.config import ConfigError
from twm.nn import products
from twm.train import checkpoint
from twm.train.files import RunError, plain, read_json, reporting, write_json

__all__ = ["Prepared", "RunDir", "RunError", "RunInUse", "machine", "write_json"]


class RunInUse(RunError):
    """Another process holds the lock of the run directory."""


class Prepared(NamedTuple):
    """A run directory, locked, and what was found in it."""

    run: RunDir
    resumed: bool  # False: the directory is new
    changes: dict[str, tuple[Any, Any]]  # option: (saved value, value from now on), where they differ


class RunDir:
    """Paths of one run and the lock on it."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.eval_path = self.path / "eval.json"
        self.machine_path = self.path / "machine.json"
        self.spec_path = self.path / "spec.json"  # shapes and actions, where no environment is at hand to tell them
        self.held_out = self.path / "held_out"  # only where recorded episodes take an environment's place
        self.lock_path = self.path / "lock"
        self.checkpoints = self.path / "checkpoints"
        self.replay = self.path / "replay"
        self._lock: IO[str] | None = None

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run, to read from; the lock is not taken."""
        run = cls(path)
        if not run.config_path.is_file():
            raise ConfigError(f"{path} is not a run directory: expected one made by twm train, with a config.json")
        return run

    @classmethod
    def prepare(cls, path: Path, config: Mapping[str, Any], may_change: Set[str] = frozenset()) -> Prepared:
        """Begin a run in ``path``, or continue the one that is there, or refuse.

        ``config`` is nested (:func:`twm.config.to_dict`), ``may_change`` holds dotted paths ("train.interactions").
        On continuing, options that differ from the saved ones are refused by name, except those in ``may_change``,
        which replace them. Returns with the lock taken; ``with run.lock():`` around the work gives it back.
        Set the number of threads before: machine.json records it.
        """
        run = cls(path)
        run._refuse_foreign()
        with reporting(f"cannot create the run directory {path}"):
            run.path.mkdir(parents=True, exist_ok=True)
        run._acquire()
        try:
            resumed = run.config_path.exists()
            changes = run._compare(config, may_change) if resumed else {}
            if any(before is not None for before, _ in changes.values()):
                run._require_checkpoint()
                run.eval_path.unlink(missing_ok=True)  # of the run as it was: until its new end it has none
            if changes or not resumed:
                write_json(run.config_path, config)  # from here on the directory is a run
            with reporting(f"cannot create the run directory {path}"):
                run.checkpoints.mkdir(exist_ok=True)
                run.replay.mkdir(exist_ok=True)
            if not run.eval_path.exists():  # a finished run stays where and by which code it was made
                run._record_machine()
        except BaseException:
            run.release()
            raise
        return Prepared(run, resumed, changes)

    def config(self) -> dict[str, Any]:
        """The saved configuration, nested; :func:`twm.config.from_dict` makes a Config of it."""
        config = read_json(self.config_path)
        if not isinstance(config, dict):
            raise RunError(f"cannot read {self.config_path}: expected an object, but it holds {type(config).__name__}")
        return config

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other process out until the end of the block. Taken over if :meth:`prepare` holds it already."""
        if self._lock is None:
            self._acquire()
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Give the lock back. The operating system does so too when the process ends, however it ends."""
        if self._lock is not None:
            _held.discard(self._lock)
            self._lock.close()
            self._lock = None

    def _acquire(self) -> None:
        with reporting(f"cannot lock the run directory {self.path}"):
            file = self.lock_path.open("a+", encoding="utf-8")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                pid = file.read().strip() or "(unknown)"
                file.close()
                raise RunInUse(
                    f"run directory {self.path} is in use by process {pid}; "
                    "wait for it, stop it, or choose another directory"
                ) from error
            except OSError:
                file.close()
                raise
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
        self._lock = file
        _held.add(file)

    def _refuse_foreign(self) -> None:
        """Never write among files of something else. What a run killed at its very start left is not foreign."""
        if not self.path.exists() or self.config_path.is_file():
            return
        if not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; expected a directory for the run: choose another name")
        ours = {self.lock_path.name, f".{self.config_path.name}.tmp"}
        with reporting(f"cannot read the run directory {self.path}"):
            others = sorted(path.name for path in self.path.iterdir() if path.name not in ours)
        if others:
            raise ConfigError(
                f"{self.path} is not a run directory and not empty (it holds {others[0]}"
                f"{f' and {len(others) - 1} more' if len(others) > 1 else ''}): choose a new or empty directory"
            )

    def _compare(self, config: Mapping[str, Any], may_change: Set[str]) -> dict[str, tuple[Any, Any]]:
        saved, given = _flatten(self.config()), _flatten(plain(config))
        # An option that this version has and the saved run had not contradicts nothing; the reverse may.
        differing = {
            option: (saved.get(option), given.get(option))
            for option in {**given, **saved}
            if option not in given or option not in saved or saved[option] != given[option]
        }
        refused = [option for option in differing if option in saved and option not in may_change]
        if refused:
            lines = [
                f"  --{option.replace('_', '-')}: saved {saved[option]}, given {given.get(option, '(unknown here)')}"
                for option in refused
            ]
            raise ConfigError(
                f"run directory {self.path} holds a run with other options:\n"
                + "\n".join(lines)
                + "\n  to continue it, leave them out or give the saved values; for a new run, choose another directory"
            )
        return differing

    def _require_checkpoint(self) -> None:
        """A finished run goes on from its last checkpoint; a copy of one, made to be kept, may have nothing to train
        from, and must not lose the score it has."""
        if not self.eval_path.exists():
            return
        problem = "it has no checkpoint"
        try:
            if self.checkpoints.is_dir() and checkpoint.load_latest(self.checkpoints, prefix="optimisers/"):
                return
        except checkpoint.CheckpointError as error:
            problem = str(error)
        raise ConfigError(f"{self.path} is finished and cannot go on: {problem}; start a new run with another --out")

    def _record_machine(self) -> None:
        """Where and with which code the run goes on; what it was before, if different, stays under "earlier"."""
        now: dict[str, Any] = plain(machine())
        earlier: list[Any] = []
        if self.machine_path.exists():
            before = read_json(self.machine_path)
            earlier = before.pop("earlier", [])
            if before == now:
                return
            earlier.append(before)
        write_json(self.machine_path, {**now, "earlier": earlier})


# A forked child (of an environment, say) shares the lock with its parent, and would keep it if the parent were killed.
# Closing the child's copy leaves the parent's lock in place.
_held: set[IO[str]] = set()


def _close_in_child() -> None:
    for file in _held:
        file.close()
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _flatten(config: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{path}{key}."))
        else:
            flat[f"{path}{key}"] = value
    return flat


# --------------------------------------------------------------------------------------------------
# Code version and machine


def machine() -> dict[str, Any]:
    """Code version and machine, without anything that names a person, a host or a place on the disk."""
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "twm": twm.__version__,
        **_git(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": usable,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "native": native.loaded(),
        "products": products.unit(),
    }


def _git() -> dict[str, Any]:
    """Commit of the source, and whether tracked files differ from it; None where the package is not in its own git."""
    package = Path(twm.__file__).resolve().parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # only looking: never hold up someone's commit
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True, env=environment)
        return done.stdout.strip()

    unknown = {"commit": None, "dirty": None}
    try:
        # An installed package may lie inside some other project's repository: its commit says nothing of ours.
        if Path(git("rev-parse", "--show-toplevel")).resolve() != package.parent:
            return unknown
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return unknown


def _cpu_model() -> str:
    if sys.platform == "linux":
        try:
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        except OSError:
            return platform.machine()
    return platform.processor() or platform.machine()
