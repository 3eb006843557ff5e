"""Arrays in files that grow row by row: what the replay keeps its experience in."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twm.config import ConfigError


class Column:
    """Rows of one shape and type: written with write(2), read through a memory map of the same file.

    Why not write through the map: a store into a hole of a sparse file on a full disk kills the process
    with SIGBUS. write(2) fails with ENOSPC instead, which Python raises as an OSError, and the map shows what was
    written at once, both being views of the page cache. Without a file the rows are simply an array.
    """

    def __init__(self, rows: npt.NDArray[Any], file: io.FileIO | None = None, offset: int = 0) -> None:
        self.rows, self._file, self._offset = rows, file, offset

    @classmethod
    def create(cls, path: Path | None, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Column:
        if path is None:
            return cls(np.zeros(shape, dtype))
        path.unlink(missing_ok=True)  # not overwritten: whoever has the old file mapped keeps it
        with path.open("xb") as file:
            _set_rows(file, dtype, shape)
        return cls._map(path)

    @classmethod
    def open(
        cls, path: Path, dtype: np.dtype[np.generic], row_shape: tuple[int, ...], length: int, capacity: int
    ) -> Column:
        rows = _checked(path, dtype, row_shape, length)
        if len(rows) < capacity:
            del rows  # unmapped before the file changes its size
            with path.open("r+b") as file:
                _set_rows(file, dtype, (capacity, *row_shape))
        return cls._map(path)

    @classmethod
    def read(cls, path: Path, dtype: np.dtype[np.generic], row_shape: tuple[int, ...], length: int) -> Column:
        """The first ``length`` rows, never to be written."""
        return cls(_checked(path, dtype, row_shape, length)[:length])

    @classmethod
    def _map(cls, path: Path) -> Column:
        rows = np.lib.format.open_memmap(path, mode="r")
        return cls(np.asarray(rows), io.FileIO(path, "r+b"), rows.offset)

    def write(self, t: int, row: npt.NDArray[np.generic]) -> None:
        if self._file is None:
            self.rows[t] = row
            return
        data = memoryview(row.tobytes())
        try:
            self._file.seek(self._offset + t * len(data))
            while len(data):  # a nearly full disk takes a part first
                data = data[self._file.write(data) :]
        except OSError as error:
            raise OSError(
                error.errno,
                f"entry {t:,} of the replay could not be written: {error.strerror}; make room for "
                f"{(len(self.rows) - t) * row.nbytes / 1e6:,.1f} MB more and resume from the last checkpoint",
                str(self._file.name),
            ) from error

    def flush(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _checked(
    path: Path, dtype: np.dtype[np.generic], row_shape: tuple[int, ...], length: int
) -> npt.NDArray[np.generic]:
    """The rows of a file, mapped read-only, if they are what is expected and at least ``length``."""
    with _explained(path):
        rows = np.lib.format.open_memmap(path, mode="r")
    if rows.dtype != dtype or rows.shape[1:] != row_shape:
        raise ConfigError(
            f"{path} holds {rows.dtype} rows of shape {rows.shape[1:]}, but {dtype} of {row_shape} were expected\n"
            "  resume with the environment and --env-options the run was started with"
        )
    if len(rows) < length:
        raise ConfigError(
            f"{path} has room for {len(rows):,} entries, but the checkpoint counts {length:,}\n"
            "  the file does not belong to this checkpoint: restore it, or start a new run"
        )
    return np.asarray(rows)


def _set_rows(file: io.BufferedIOBase, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> None:
    """Size the file for ``shape`` and write the .npy header that says so; what is added is a hole, not disk space.

    numpy pads headers so that the first axis can grow in place. The size comes first: after a crash in between, the
    file is longer than its header says, which is harmless.
    """
    header = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    file.truncate(header.tell() + dtype.itemsize * math.prod(shape))
    file.write(header.getvalue())


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Missing, short or foreign files as one line that says so."""
    try:
        yield
    except FileNotFoundError:
        raise ConfigError(
            f"{path} is missing: the replay cannot be resumed\n  restore the file, or start a new run"
        ) from None
    except ValueError as error:  # numpy's word for a bad header and for a file shorter than its header says
        raise ConfigError(
            f"{path} is damaged or cut short ({error}); it has {path.stat().st_size:,} bytes\n"
            "  restore the file, or start a new run"
        ) from error
