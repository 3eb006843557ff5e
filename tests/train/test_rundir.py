from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import twm
from twm.config import Config, ConfigError, from_dict, to_dict, with_options
from twm.train import rundir
from twm.train.files import plain, read_json
from twm.train.rundir import RunDir, RunError, RunInUse, machine, write_json

CONFIG: dict[str, Any] = {"env": "Catch", "seed": 0, "train": {"interactions": 1000, "log_every": 10}}
MAY_CHANGE = {"train.interactions", "train.log_every"}


def prepared(path: Path, config: dict[str, Any] = CONFIG) -> tuple[bool, dict[str, tuple[Any, Any]]]:
    """Prepare and give the lock back."""
    run, resumed, changes = RunDir.prepare(path, config, MAY_CHANGE)
    with run.lock():
        assert run.checkpoints.is_dir()
        assert run.replay.is_dir()
    return resumed, changes


def changed(**options: Any) -> dict[str, Any]:
    return {**CONFIG, **options}


# --------------------------------------------------------------------------------------------------
# New, resumed, refused


def test_a_new_run_then_the_same_command_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    assert prepared(path) == (False, {})
    assert RunDir.open(path).config() == CONFIG
    before = {file: file.read_bytes() for file in path.glob("*.json")}
    assert prepared(path) == (True, {})
    assert {file: file.read_bytes() for file in path.glob("*.json")} == before


def test_options_that_may_change_apply(tmp_path: Path) -> None:
    prepared(tmp_path)
    more = changed(train={"interactions": 2000, "log_every": 10})
    assert prepared(tmp_path, more) == (True, {"train.interactions": (1000, 2000)})
    assert RunDir.open(tmp_path).config() == more


def test_contradictions_are_refused_by_name(tmp_path: Path) -> None:
    prepared(tmp_path)
    with pytest.raises(ConfigError) as error:
        prepared(tmp_path, {"env": "Pong", "train": {"interactions": 2000, "log_every": 10}})
    assert str(error.value) == (
        f"run directory {tmp_path} holds a run with other options:\n"
        "  --env: saved Catch, given Pong\n"
        "  --seed: saved 0, given (unknown here)\n"
        "  to continue it, leave them out or give the saved values; for a new run, choose another directory"
    )
    assert RunDir.open(tmp_path).config() == CONFIG, "nothing of a refused command may be saved"
    assert prepared(tmp_path) == (True, {}), "the lock should have been given back"


def test_an_option_the_saved_run_did_not_know_contradicts_nothing(tmp_path: Path) -> None:
    prepared(tmp_path)
    assert prepared(tmp_path, changed(new=True)) == (True, {"new": (None, True)})


def test_a_real_configuration_survives(tmp_path: Path) -> None:
    config = with_options(Config(), {"replay.temperature": float("inf")})
    prepared(tmp_path, to_dict(config))
    assert prepared(tmp_path, to_dict(config)) == (True, {})
    assert from_dict(RunDir.open(tmp_path).config()) == config
    with pytest.raises(ConfigError, match=r"--world-model\.batch-size: saved 100, given 50"):
        prepared(tmp_path, to_dict(with_options(config, {"world_model.batch_size": 50})))


def test_foreign_directories_are_not_touched(tmp_path: Path) -> None:
    for name in ("thesis.tex", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError) as error:
        prepared(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} is not a run directory and not empty (it holds notes.txt and 1 more): "
        "choose a new or empty directory"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "thesis.tex"]
    with pytest.raises(ConfigError, match=r"thesis\.tex is a file; expected a directory"):
        prepared(tmp_path / "thesis.tex")
    with pytest.raises(ConfigError, match="is not a run directory: expected one made by twm train"):
        RunDir.open(tmp_path)


def test_killed_anywhere_at_the_start(tmp_path: Path, killed_at: Any) -> None:
    """However early a run was killed, the same command takes it up."""
    path = tmp_path / "run"
    for n in range(200):
        shutil.rmtree(path, ignore_errors=True)
        ended = killed_at(n, lambda: prepared(path))
        prepared(path)
        assert RunDir.open(path).config() == CONFIG
        assert not [file.name for file in path.iterdir() if file.name.startswith(".")]
        if ended.signal == 0:
            break
        assert ended.signal == signal.SIGKILL
    assert n > 8


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "config.json").write_text('{"env": ')
    with pytest.raises(RunError, match=r"cannot read .*config.json: it is not valid JSON"):
        prepared(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(RunError, match=r"cannot read .*config.json: expected an object, but it holds list"):
        prepared(tmp_path)


# --------------------------------------------------------------------------------------------------
# Lock


def test_a_second_process_is_kept_out(tmp_path: Path, in_child: Any) -> None:
    run = RunDir.prepare(tmp_path, CONFIG).run
    refusal = (
        f"RunInUse: run directory {tmp_path} is in use by process {os.getpid()}; "
        "wait for it, stop it, or choose another directory"
    )
    more = changed(train={"interactions": 2000, "log_every": 10})
    with run.lock():
        assert in_child(lambda: prepared(tmp_path, more)).text == refusal
        assert in_child(lambda: RunDir(tmp_path).lock().__enter__()).text == refusal
        assert RunDir.open(tmp_path).config() == CONFIG, "who is kept out must not change the options"
    assert in_child(lambda: prepared(tmp_path)).text == "(True, {})"


def test_sigkill_frees_the_lock_though_children_live_on(tmp_path: Path) -> None:
    """A separate interpreter takes the lock, forks a worker, and is killed; the worker stays."""
    code = (
        "import os, pathlib, sys, time\n"
        "from twm.train.rundir import RunDir\n"
        "with RunDir(pathlib.Path(sys.argv[1])).lock():\n"
        "    worker = os.fork()\n"
        "    if worker: print(worker, flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    try:
        with pytest.raises(RunInUse, match=f"in use by process {process.pid};"):
            RunDir(tmp_path).lock().__enter__()
        process.kill()
        process.wait()
        os.kill(worker, 0)  # still there
        deadline = time.monotonic() + 5
        while True:  # the worker closes its copy right after the fork, perhaps not yet
            try:
                with RunDir(tmp_path).lock():
                    break
            except RunInUse:
                assert time.monotonic() < deadline, "the worker keeps the lock"
                time.sleep(0.01)
    finally:
        process.kill()
        os.kill(worker, signal.SIGKILL)
        process.stdout.close()


def test_the_lock_is_free_after_an_error_inside(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with pytest.raises(ZeroDivisionError), run.lock():
        raise ZeroDivisionError
    with run.lock(), pytest.raises(RunInUse):
        RunDir(tmp_path).lock().__enter__()


def test_a_vanished_directory(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot lock the run directory .*: No such file or directory"):
        RunDir(tmp_path / "gone").lock().__enter__()


# --------------------------------------------------------------------------------------------------
# JSON files


def test_write_json_is_strict_and_complete(tmp_path: Path) -> None:
    import numpy as np
    import torch

    value = {"a": (1, np.float32(0.5)), "t": torch.ones(2, requires_grad=True), "nan": float("nan"), 3: np.int64(2)}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == {"a": [1, 0.5], "t": [1.0, 1.0], "nan": None, "3": 2}
    with pytest.raises(TypeError, match="expected a number, text, list or mapping for JSON, but came object"):
        plain({"x": object()})


def test_write_json_keeps_the_old_file_when_the_new_one_does_not_fit(
    tmp_path: Path, with_file_limit: Any, on_small_disk: Any
) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"old": 1})
    outcome = with_file_limit(100, lambda: write_json(path, ["new"] * 1000))
    assert outcome.text == f"RunError: cannot write {path}: File too large"
    assert read_json(path) == {"old": 1}
    assert not (tmp_path / ".x.json.tmp").exists()

    def fill(disk: Path) -> None:
        write_json(disk / "x.json", {"old": 1})
        try:
            write_json(disk / "x.json", ["new"] * 100_000)
        finally:
            assert read_json(disk / "x.json") == {"old": 1}

    text = on_small_disk(100_000, fill).text
    assert text == f"RunError: cannot write {tmp_path / 'small-disk' / 'x.json'}: No space left on device"


def test_read_only_place(tmp_path: Path, without_rights: Any) -> None:
    tmp_path.chmod(0o555)
    text = without_rights(tmp_path, lambda: prepared(Path("run"))).text
    tmp_path.chmod(0o755)
    assert text == "RunError: cannot create the run directory run: Permission denied"


# --------------------------------------------------------------------------------------------------
# Machine


def test_machine_says_what_is_needed_and_nothing_private(tmp_path: Path) -> None:
    prepared(tmp_path)
    text = (tmp_path / "machine.json").read_text()
    found = json.loads(text)
    assert found["twm"] == twm.__version__
    assert found["python"] == platform.python_version()
    assert found["cores"] == os.cpu_count()
    assert found["threads"] >= 1
    assert found["cpu"]
    assert found["earlier"] == []
    assert platform.node() not in text
    assert str(Path.home()) not in text
    assert str(Path(twm.__file__).parent) not in text


def test_another_machine_is_added_and_the_first_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for torch_version in ("1", "2", "2", "1"):
        monkeypatch.setattr(rundir, "machine", lambda version=torch_version: {"torch": version})
        prepared(tmp_path)
    assert read_json(tmp_path / "machine.json") == {"torch": "1", "earlier": [{"torch": "1"}, {"torch": "2"}]}


def test_commit_and_dirty_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    source = tmp_path / "twm" / "__init__.py"
    source.parent.mkdir()
    source.write_text("1")
    monkeypatch.setattr(twm, "__file__", str(source))
    assert (machine()["commit"], machine()["dirty"]) == (None, None)
    git("init")
    git("add", ".")
    git("commit", "-m", "x")
    assert (machine()["commit"], machine()["dirty"]) == (git("rev-parse", "HEAD"), False)
    source.write_text("2")
    assert machine()["dirty"] is True
    monkeypatch.setattr(twm, "__file__", str(tmp_path / ".venv" / "twm" / "__init__.py"))
    (tmp_path / ".venv" / "twm").mkdir(parents=True)
    assert machine()["commit"] is None, "installed inside someone else's repository"
