from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from twm.train import checkpoint
from twm.train.checkpoint import CheckpointError, DamagedCheckpoint, load, load_best, load_latest, save

Damage = Callable[[Path], object]


def state_of(step: int, size: int = 8) -> dict[str, Any]:
    """A state from which the step can be read in two places: they must agree."""
    return {"model": {"w": torch.full((size,), float(step))}, "optimiser": {"m": torch.ones(size)}, "step": step}


def check(step: int, state: dict[str, Any]) -> None:
    assert state["step"] == step
    assert torch.equal(state["model"]["w"], torch.full_like(state["model"]["w"], float(step)))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A directory with the checkpoints of steps 1 (the best), 2 and 3."""
    for step in (1, 2, 3):
        save(tmp_path, step, state_of(step), is_best=step == 1)
    return tmp_path


# --------------------------------------------------------------------------------------------------
# The good days


def test_round_trip(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.arange(3.0), "loss": float("nan"), "rng": 2**127 + 1, "list": (1, None)}
    path = save(tmp_path, 12345, state)
    assert path == tmp_path / "step-000012345"
    step, back = load(path)
    assert step == 12345
    assert torch.equal(back["w"], state["w"])
    assert back["loss"] != back["loss"]
    assert (back["rng"], back["list"]) == (2**127 + 1, [1, None])


def test_only_strict_json_and_safetensors(tmp_path: Path) -> None:
    path = save(tmp_path, 1, {"model": {"w": torch.ones(2)}, "x": float("inf")})
    assert names(path) == ["state.json", "state.safetensors"]

    def refuse(text: str) -> None:
        raise ValueError(text)

    document = json.loads((path / "state.json").read_text(), parse_constant=refuse)
    assert (document["format"], document["step"], document["best"]) == (1, 1, False)
    with safe_open(path / "state.safetensors", framework="pt") as tensors:
        assert list(tensors.keys()) == ["model/w"]
    modes = {(path / name).stat().st_mode for name in names(path)}
    assert len(modes) == 1, "both files should be readable for the same people"


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        save(tmp_path / name, 1, state_of(1))
    for file in ("state.json", "state.safetensors"):
        assert (tmp_path / "a/step-000000001" / file).read_bytes() == (
            tmp_path / "b/step-000000001" / file
        ).read_bytes()


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    kept = []
    for step in range(1, 8):
        save(tmp_path, step, state_of(step), keep=2, is_best=step in (2, 5))
        kept.append([int(name[-1]) for name in names(tmp_path)])
    assert kept == [[1], [1, 2], [2, 3], [2, 3, 4], [4, 5], [5, 6], [5, 6, 7]]
    best, latest = load_best(tmp_path), load_latest(tmp_path)
    assert best is not None
    assert latest is not None
    assert (best.step, best.is_best, latest.step, latest.is_best) == (5, True, 7, False)
    assert best.warnings == latest.warnings == []
    check(5, best.state)


def test_nothing_saved_yet(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None
    save(tmp_path, 1, state_of(1))
    assert load_best(tmp_path) is None


def test_saving_a_step_again_replaces_it_and_it_stays_the_best(tmp_path: Path) -> None:
    save(tmp_path, 4, {"x": 1}, is_best=True)
    save(tmp_path, 4, {"x": 2})
    assert names(tmp_path) == ["step-000000004"]
    best = load_best(tmp_path)
    assert best is not None
    assert best.state == {"x": 2}


def test_going_back_drops_the_future_that_was_given_up(three: Path) -> None:
    save(three, 2, state_of(2))
    assert names(three) == ["step-000000001", "step-000000002"]


def test_a_part_of_the_state(three: Path) -> None:
    path = three / "step-000000003"
    _, state = load(path, prefix="model/")
    assert list(state) == ["model"]
    check(3, {**state, "step": 3})
    latest = load_latest(three, prefix=("model/", "step"))
    assert latest is not None
    assert list(latest.state) == ["model", "step"]
    with pytest.raises(CheckpointError, match="holds nothing under actor/; it has model, optimiser, step"):
        load(path, prefix=("model/", "actor/"))


def test_loaded_tensors_are_aligned_and_outlive_the_file(tmp_path: Path) -> None:
    path = save(tmp_path, 1, {"odd": torch.ones(3, dtype=torch.uint8), "a": torch.ones(5), "b": torch.ones(7)})
    _, state = load(path)
    (path / "state.safetensors").write_bytes(b"")  # a mapped file would now end the process with SIGBUS
    assert [tensor.data_ptr() % 64 for tensor in state.values()] == [0, 0, 0]
    assert [float(tensor.sum()) for tensor in state.values()] == [3, 5, 7]


# --------------------------------------------------------------------------------------------------
# Damage


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_every_flipped_bit_is_seen(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 1, state_of(1))
    file = path / name
    good = file.read_bytes()
    for position in range(len(good)):
        flip(file, position)
        with pytest.raises(DamagedCheckpoint, match="is damaged"):
            load(path)
        file.write_bytes(good)
    load(path)


def become_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


damages: dict[str, tuple[Damage, str]] = {
    "flipped": (lambda path: flip(path / "state.safetensors", 150), "the checksum of state.safetensors differs"),
    "truncated": (
        lambda path: os.truncate(path / "state.safetensors", 100),
        "the checksum of state.safetensors differs",
    ),
    "json truncated": (lambda path: os.truncate(path / "state.json", 100), "state.json is not what was written"),
    "json empty": (lambda path: os.truncate(path / "state.json", 0), "state.json is not what was written"),
    "json from another": (
        lambda path: shutil.copy(path.with_name("step-000000001") / "state.json", path),
        "the checksum of state.safetensors differs",
    ),
    "missing": (lambda path: (path / "state.safetensors").unlink(), "state.safetensors is missing"),
    "json missing": (lambda path: (path / "state.json").unlink(), "state.json is missing"),
    "a file": (become_a_file, "state.json: Not a directory"),
}


@pytest.mark.parametrize(("damage", "text"), damages.values(), ids=damages)
def test_damage_is_named_and_the_one_before_is_used(three: Path, damage: Damage, text: str) -> None:
    damage(three / "step-000000003")
    latest = load_latest(three)
    assert latest is not None
    check(2, latest.state)
    assert latest.path.name == "step-000000002"
    assert latest.warnings == [
        f"checkpoint {three / 'step-000000003'} is damaged: {text}; passed over for the one before it"
    ]


def test_all_damaged(three: Path) -> None:
    for path in three.iterdir():
        flip(path / "state.json", 5)
    with pytest.raises(CheckpointError) as error:
        load_latest(three)
    assert str(error.value).startswith(f"no usable checkpoint in {three}: checkpoint")
    assert all(f"step-00000000{step} is damaged" in str(error.value) for step in (1, 2, 3))
    assert "\n" not in str(error.value)


def test_a_damaged_best_is_not_silently_another(three: Path) -> None:
    flip(three / "step-000000001" / "state.safetensors", 150)
    with pytest.raises(CheckpointError, match="step-000000001 is damaged"):
        load_best(three)


def test_damage_elsewhere_does_not_hide_the_best(three: Path) -> None:
    flip(three / "step-000000003" / "state.json", 5)
    best = load_best(three)
    assert best is not None
    assert (best.step, len(best.warnings)) == (1, 1)


def test_a_format_of_the_future_is_no_damage(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 2)
        save(three, 4, state_of(4))
    with pytest.raises(CheckpointError, match="has format 2, this version reads format 1"):
        load_latest(three)


def test_no_such_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load(tmp_path / "step-000000001")


# --------------------------------------------------------------------------------------------------
# Killed


@pytest.mark.parametrize(("step", "possible"), [(4, {3, 4}), (3, {3})], ids=["new step", "same step"])
def test_killed_before_any_file_operation(three: Path, killed_at: Any, step: int, possible: set[int]) -> None:
    """Wherever it ends, a whole checkpoint is there, the best is there, and the next save leaves no remains."""
    template = three.with_name(three.name + "-template")
    three.rename(template)
    seen = set()
    for n in range(1000):
        shutil.copytree(template, three)
        ended = killed_at(n, lambda: save(three, step, state_of(step), keep=2))
        before = names(three)
        latest, best = load_latest(three), load_best(three)
        assert names(three) == before, "reading must not change anything: the writer may be alive"
        assert latest is not None
        assert best is not None
        assert latest.warnings == best.warnings == []
        check(latest.step, latest.state)
        check(1, best.state)
        seen.add(latest.step)
        save(three, 5, state_of(5), keep=2)
        assert names(three) == ["step-000000001", f"step-00000000{latest.step}", "step-000000005"]
        shutil.rmtree(three)
        if ended.signal == 0:
            break
        assert ended.signal == signal.SIGKILL
    assert n > 15, "the hook should have fired at many places"
    assert seen == possible


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """A process that saves without pause, killed with SIGKILL after random times, also in the middle of a write."""
    rng = random.Random(0)
    for _ in range(12):
        latest = load_latest(tmp_path)
        first = latest.step + 1 if latest else 1
        pid = os.fork()
        if pid == 0:
            try:
                for step in range(first, first + 10_000):
                    save(tmp_path, step, state_of(step, size=300_000), is_best=step % 5 == 0)
            finally:
                os._exit(1)
        time.sleep(rng.uniform(0.02, 0.2))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), "saving ended by itself"
        latest = load_latest(tmp_path)
        if latest is not None:
            assert latest.warnings == []
            assert latest.step >= first - 1
            check(latest.step, latest.state)
    assert latest is not None
    best = load_best(tmp_path)
    assert best is not None
    assert latest.step - best.step < 5
    save(tmp_path, latest.step + 1, state_of(latest.step + 1))
    assert len(names(tmp_path)) <= 4


# --------------------------------------------------------------------------------------------------
# Disk and rights


def test_disk_full(on_small_disk: Any) -> None:
    def fill(disk: Path) -> str:
        save(disk, 1, state_of(1, size=100_000))  # 2 x 400 KB of 1 MB
        try:
            save(disk, 2, state_of(2, size=100_000))
        except CheckpointError as error:
            latest = load_latest(disk)
            assert latest is not None
            check(1, latest.state)
            assert names(disk) == ["step-000000001"], "the space should have been given back"
            return str(error).replace(str(disk), "DISK")
        return "saved"

    text = on_small_disk(1_000_000, fill).text
    assert text.startswith("cannot save checkpoint DISK/step-000000002: ")
    assert "No space left on device" in text
    assert text.endswith("; the last one, step-000000001, is untouched")
    assert "\n" not in text


@pytest.mark.parametrize("limit", [1000, 200], ids=["tensors too large", "json too large"])
def test_file_size_limit(three: Path, with_file_limit: Any, limit: int) -> None:
    big = state_of(4, size=1000 if limit == 1000 else 0)
    outcome = with_file_limit(limit, lambda: save(three, 4, big))
    assert outcome.text.startswith(f"CheckpointError: cannot save checkpoint {three}/step-000000004: ")
    assert "File too large" in outcome.text
    assert names(three) == ["step-000000001", "step-000000002", "step-000000003"]
    latest = load_latest(three)
    assert latest is not None
    check(3, latest.state)


def test_read_only_directory(three: Path, without_rights: Any) -> None:
    three.chmod(0o555)
    outcome = without_rights(three, lambda: save(Path(), 4, state_of(4)))
    three.chmod(0o755)
    assert outcome.text == (
        "CheckpointError: cannot save checkpoint step-000000004: Permission denied; "
        "the last one, step-000000003, is untouched"
    )
    assert load_latest(three) is not None


def test_missing_rights_are_not_taken_for_damage(three: Path, without_rights: Any) -> None:
    for path in three.iterdir():
        path.chmod(0o755)
    (three / "step-000000003" / "state.safetensors").chmod(0)
    three.chmod(0o755)
    outcome = without_rights(three, lambda: load_latest(Path()))
    assert outcome.text == (
        "CheckpointError: cannot read checkpoint step-000000003: state.safetensors: Permission denied"
    )


def test_vanished_directory(three: Path) -> None:
    shutil.rmtree(three)
    with pytest.raises(CheckpointError) as error:
        save(three, 4, state_of(4))
    assert str(error.value) == (
        f"cannot save checkpoint {three}/step-000000004: No such file or directory; no earlier one is there"
    )
    assert not three.exists(), "a directory someone removed must not come back with one lonely checkpoint"
    with pytest.raises(CheckpointError, match=r"cannot look for checkpoints in .*: No such file or directory"):
        load_latest(three)


def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    place = tmp_path / "checkpoints"
    place.touch()
    with pytest.raises(CheckpointError, match="Not a directory"):
        save(place, 1, state_of(1))


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="came step -1 and keep 3"):
        save(tmp_path, -1, {})
    with pytest.raises(ValueError, match="came step 1 and keep 0"):
        save(tmp_path, 1, {}, keep=0)


def test_what_cannot_be_saved_leaves_no_trace(three: Path) -> None:
    with pytest.raises(TypeError, match="cannot save agent"):
        save(three, 4, {"agent": object()})
    assert len(names(three)) == 3


def test_nothing_here_unpickles(three: Path, in_child: Any) -> None:
    def without_pickle() -> object:
        def refuse(*_: object, **__: object) -> None:
            raise RuntimeError("unpickled")

        pickle.load = pickle.loads = pickle.Unpickler = torch.load = refuse  # type: ignore[assignment, misc]
        _, state = load(save(three, 4, {**state_of(4), "emulator": b"x"}))
        check(4, state)
        return "never unpickled"

    assert in_child(without_pickle).text == "never unpickled"
