"""Checkpoints that cannot hurt or lie: JSON and safetensors only, checksummed, written all or nothing.

    checkpoints/
      step-000012000/
        state.json           format, step, whether it was the best so far, checksums, everything but the tensors
        state.safetensors    tensors and arrays by name: world_model/..., policy/...
      step-000013000/ ...

A checkpoint is written under a temporary name, flushed to the disk, then renamed, so a process killed at
any moment leaves either none or a whole one. Each says of itself whether it was the best so far, and the best
of a directory is the newest that says so: there is no second file that could point nowhere.

One process writes (the lock of the run directory sees to that); any number may read at the same time.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from twm.train import tree
from twm.train.files import RunError, reason, sync

FORMAT = 1
_JSON, _TENSORS = "state.json", "state.safetensors"
_TEMPORARY, _REPLACED = ".tmp-", ".replaced-"
_NAME = re.compile(rf"({re.escape(_REPLACED)})?step-(\d{{9,}})")
_NO_SUM = "0" * 64  # stands for the checksum of state.json while that is computed
_DAMAGE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO}


class CheckpointError(RunError):
    """A checkpoint could not be written or read. Those written before are intact."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint that is not what was written: truncated, altered, or parts of it missing."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint, where it came from, and which newer ones had to be passed over because they are damaged."""

    path: Path
    step: int
    state: dict[str, Any]
    is_best: bool
    warnings: list[str] = field(default_factory=list)


# --------------------------------------------------------------------------------------------------
# Writing


def save(directory: Path, step: int, state: Mapping[str, Any], *, keep: int = 3, is_best: bool = False) -> Path:
    """Write ``state`` as the checkpoint of ``step`` and drop all but the last ``keep`` and the best.

    The leaves of ``state`` are torch tensors, numpy arrays, bytes and JSON values (any int, inf and nan too).
    Tensors come back on the CPU, with their dtype and memory layout; tuples come back as lists. Checkpoints of
    later steps are dropped as well: whoever saves step 5 after step 9 has gone back, and resuming must follow.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"expected step >= 0 and keep >= 1, came step {step} and keep {keep}")
    node, tensors = tree.pack(state)
    path = directory / f"step-{step:09d}"
    temporary = directory / (_TEMPORARY + path.name)
    try:
        clean(directory)
        temporary.mkdir()
        # Saved twice, the second time on the way out: it is still the best.
        best = is_best or (path.exists() and _says_best(path))
        _write(temporary, {"format": FORMAT, "step": step, "best": best}, node, tensors)
        _publish(temporary, path)
        _prune(directory, step, keep)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)  # a full disk gets its space back
        raise CheckpointError(f"cannot save checkpoint {path}: {reason(error)}; {_intact(directory)}") from error
    return path


def clean(directory: Path) -> None:
    """Remove what a killed process left behind. Only for the process that writes (:func:`save` calls it)."""
    for path in list(directory.iterdir()):
        if path.name.startswith(_TEMPORARY):
            shutil.rmtree(path)
        elif path.name.startswith(_REPLACED):
            original = directory / path.name.removeprefix(_REPLACED)
            if original.exists():
                shutil.rmtree(path)
            else:  # killed between the two renames of _publish
                path.rename(original)


def _write(directory: Path, head: dict[str, Any], node: Any, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, directory / _TENSORS)
    sums = {_JSON: _NO_SUM, _TENSORS: _file_sum(directory / _TENSORS)}
    text = json.dumps({**head, "sha256": sums, "state": node}, allow_nan=False)
    # The file's own checksum is that of the file with zeros in its place: every byte is covered.
    text = text.replace(_NO_SUM, _text_sum(text.encode()), 1)
    (directory / _JSON).write_text(text, encoding="utf-8")
    # safetensors makes its file readable for the owner only; give it the rights any new file gets here.
    os.chmod(directory / _TENSORS, (directory / _JSON).stat().st_mode)
    for path in (directory / _TENSORS, directory / _JSON, directory):
        sync(path)


def _publish(temporary: Path, path: Path) -> None:
    """Give the checkpoint its name. A full directory cannot be renamed over, so an older one steps aside first."""
    replaced = path.with_name(_REPLACED + path.name)
    if path.exists():
        os.rename(path, replaced)
    os.rename(temporary, path)
    sync(path.parent)
    if replaced.exists():
        shutil.rmtree(replaced)


def _prune(directory: Path, step: int, keep: int) -> None:
    found = _checkpoints(directory)
    past = [path for number, path in found if number <= step]
    kept = set(past[:keep])
    kept.update([path for path in past if _says_best(path)][:1])
    for _, path in found:
        if path not in kept:
            # First out of sight: a half-deleted checkpoint must not be taken for a damaged one.
            doomed = path.with_name(_TEMPORARY + path.name)
            os.rename(path, doomed)
            shutil.rmtree(doomed)


def _says_best(path: Path) -> bool:
    try:
        return bool(_read_json(path)["best"])
    except CheckpointError:
        return False


def _intact(directory: Path) -> str:
    try:
        found = _checkpoints(directory)
    except OSError:
        found = []
    return f"the last one, {found[0][1].name}, is untouched" if found else "no earlier one is there"


# --------------------------------------------------------------------------------------------------
# Reading


def load(path: Path, *, prefix: str | tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
    """Step and state of one checkpoint, after its checksums are verified.

    ``prefix`` keeps only some branches of the state, in their places: ``("world_model/", "policy/")`` is enough
    to act, and leaves the optimisers on the disk.
    """
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint {path}")
    document = _read_json(path)
    return document["step"], _read_state(path, document, prefix)


def load_latest(directory: Path, *, prefix: str | tuple[str, ...] = ()) -> Loaded | None:
    """The newest checkpoint that is whole; None if none was ever written. Damaged ones are named in ``warnings``."""
    return _first(directory, prefix, best=False)


def load_best(directory: Path, *, prefix: str | tuple[str, ...] = ()) -> Loaded | None:
    """The newest checkpoint that was the best when it was saved; None if none was ever marked so."""
    return _first(directory, prefix, best=True)


def _first(directory: Path, prefix: str | tuple[str, ...], best: bool) -> Loaded | None:
    try:
        found = _checkpoints(directory)
    except OSError as error:
        raise CheckpointError(f"cannot look for checkpoints in {directory}: {reason(error)}") from error
    warnings = []
    for _, path in found:
        try:
            document = _read_json(path)
            if best and not document["best"]:
                continue
            state = _read_state(path, document, prefix)
        except DamagedCheckpoint as error:
            warnings.append(f"{error}; passed over for the one before it")
            continue
        return Loaded(path, document["step"], state, document["best"], warnings)
    if warnings:
        names = "; ".join(warning.removesuffix("; passed over for the one before it") for warning in warnings)
        raise CheckpointError(f"no usable checkpoint in {directory}: {names}; restore one or start a new run")
    return None


def _checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Steps and paths, newest first. One that was stepping aside for a replacement that never came still counts."""
    found: dict[int, Path] = {}
    for path in directory.iterdir():
        match = _NAME.fullmatch(path.name)
        if match and (match[1] is None or int(match[2]) not in found):
            found[int(match[2])] = path
    return sorted(found.items(), reverse=True)


def _read_json(path: Path) -> dict[str, Any]:
    """The verified contents of state.json."""
    file = path / _JSON
    try:
        data = file.read_bytes()
    except OSError as error:
        raise _unreadable(path, _JSON, error) from error
    try:
        document = json.loads(data)
        own = str(document["sha256"][_JSON])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"checkpoint {path} is damaged: {_JSON} is not what was written") from error
    if _text_sum(data.replace(own.encode(), _NO_SUM.encode(), 1)) != own:
        raise DamagedCheckpoint(f"checkpoint {path} is damaged: the checksum of {_JSON} differs")
    if document["format"] != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {document['format']}, this version reads format {FORMAT}; "
            "use the version of twm that wrote it (machine.json names it)"
        )
    return dict(document)


def _read_state(path: Path, document: dict[str, Any], prefix: str | tuple[str, ...]) -> dict[str, Any]:
    file = path / _TENSORS
    node = document["state"]
    prefixes = (prefix,) if isinstance(prefix, str) else prefix
    for one in prefixes:
        if not tree.select(node, [one]):
            raise CheckpointError(f"checkpoint {path} holds nothing under {one}; it has {', '.join(node)}")
    if prefixes:
        node = tree.select(node, prefixes)
    try:
        if _file_sum(file) != document["sha256"][_TENSORS]:
            raise DamagedCheckpoint(f"checkpoint {path} is damaged: the checksum of {_TENSORS} differs")
        with safe_open(file, framework="pt") as tensors:
            # Tensors of safe_open lie in the mapped file, aligned to 8 bytes only. The copy is aligned as torch
            # aligns, which kernels (and so the last bits of a resumed run) depend on, and outlives the file.
            state: dict[str, Any] = tree.unpack(node, lambda name: tensors.get_tensor(name).clone())
            return state
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, _TENSORS, error) from error


def _unreadable(path: Path, name: str, error: Exception) -> CheckpointError:
    """Damage makes way for an older checkpoint. Missing rights and the like do not: that would lose work silently."""
    if isinstance(error, FileNotFoundError):
        return DamagedCheckpoint(f"checkpoint {path} is damaged: {name} is missing")
    if isinstance(error, SafetensorError) or (isinstance(error, OSError) and error.errno in _DAMAGE):
        return DamagedCheckpoint(f"checkpoint {path} is damaged: {name}: {reason(error)}")
    return CheckpointError(f"cannot read checkpoint {path}: {name}: {reason(error)}")


def _file_sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _text_sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
