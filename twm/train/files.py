"""Writing files so that a crash at any moment leaves either the old or the new one, whole.

The order is always the same: write under a temporary name in the same directory, flush it to the disk
(``fsync``), rename it (atomic on one file system), flush the directory that holds the name.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class RunError(Exception):
    """Files of a run that cannot be read or written: one line that names the place, the reason and the way out."""


@contextmanager
def reporting(what: str) -> Iterator[None]:
    """Turn the operating system's errors (disk full, read-only, vanished, ...) into a :class:`RunError`."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{what}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Why, without the number and the path the operating system adds: "No space left on device"."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def sync(path: Path) -> None:
    """Force a file's contents, or a directory's names, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: numbers of numpy and torch as Python's, tuples as lists, NaN and ±inf as null."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays and tensors of any size, and numpy's scalars
        return plain(value.tolist())
    raise TypeError(f"expected a number, text, list or mapping for JSON, but came {type(value).__name__}: {value!r}")


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as JSON, all or nothing."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.tmp")
    with reporting(f"cannot write {path}"):
        try:
            temporary.write_text(text, encoding="utf-8")
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
        except OSError:
            temporary.unlink(missing_ok=True)  # a full disk gets its space back
            raise


def read_json(path: Path) -> Any:
    """The value in ``path``."""
    with reporting(f"cannot read {path}"):
        data = path.read_bytes()
    try:
        return json.loads(data)
    except ValueError as error:
        raise RunError(f"cannot read {path}: it is not valid JSON ({error})") from error
