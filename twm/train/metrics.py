"""The metric log: one JSON object a line, only ever appended to, cut back to the last checkpoint on resume.

Keys that begin with "time/" hold durations and speeds: the only values that differ between a run that was
interrupted and one that was not. :func:`without_times` leaves them out.
"""

from __future__ import annotations

import importlib
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from twm.config import ConfigError
from twm.train.files import RunError, plain, read_json, reporting, write_json

TIME_PREFIX = "time/"


class MetricLog:
    """Append records to ``path``, and their numbers to the named sinks ("tensorboard", "wandb").

    ``step_key`` is the key whose value is the horizontal axis in the sinks; ``config`` is shown there too.
    """

    def __init__(
        self,
        path: Path,
        sinks: Iterable[str] = (),
        *,
        step_key: str = "interactions",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        self._step_key = step_key
        self._sinks = [_sink(name, path.parent, config or {}) for name in sinks]
        with reporting(f"cannot open {path}"):
            self._file = path.open("ab", buffering=0)
            ends = _line_ends(path.read_bytes())
            self._records = len(ends)
            self._size = ends[-1] if ends else 0
            self._file.truncate(self._size)  # a process killed while it wrote leaves a part of a line

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one record; it survives the process from here on. NaN and infinities become null."""
        clean = plain(record)
        line = json.dumps(clean, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with reporting(f"cannot write {self.path}"):
            try:
                written = 0
                while written < len(line):  # an unbuffered file may take a part only, e.g. the last free bytes
                    written += self._file.write(line[written:])
            except OSError:
                self._file.truncate(self._size)
                raise
        self._size += len(line)
        self._records += 1
        for sink in self._sinks:
            sink.log(int(clean.get(self._step_key) or 0), _numbers(clean))

    @property
    def position(self) -> int:
        """Number of records so far, to be kept in a checkpoint; reading it flushes them to the disk.

        Records and not bytes: durations take more or fewer digits, and checkpoints of equal runs should be equal.
        """
        with reporting(f"cannot write {self.path}"):
            os.fsync(self._file.fileno())
        return self._records

    def truncate(self, position: int) -> str | None:
        """Forget the records after ``position``, on resume: they will be made again, the same.

        Returns a warning if some from before it are missing (someone removed or shortened the file).
        """
        missing = position - self._records
        if missing < 0:
            with reporting(f"cannot cut {self.path} back"):
                ends = _line_ends(self.path.read_bytes())
                self._size = ends[position - 1] if position else 0
                self._file.truncate(self._size)
            self._records = position
        if missing <= 0:
            return None
        return f"{self.path} has lost {missing} of the {position} records before the checkpoint; the rest goes on"

    def close(self) -> None:
        """Close the file and the sinks."""
        self._file.close()
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> MetricLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path) -> list[dict[str, Any]]:
    """All complete records of a log. The last line of a killed or running process may be incomplete: it is left out."""
    with reporting(f"cannot read {path}"):
        data = path.read_bytes()
    records = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise RunError(f"cannot read {path}: line {number} is not valid JSON") from error
        if not isinstance(record, dict):
            raise RunError(f"cannot read {path}: line {number} holds {type(record).__name__}, expected an object")
        records.append(record)
    return records


def without_times(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records without their timings: what two equal runs agree on."""
    return [{key: value for key, value in record.items() if not key.startswith(TIME_PREFIX)} for record in records]


def _line_ends(data: bytes) -> list[int]:
    """The offset behind each complete line."""
    ends = []
    end = data.find(b"\n")
    while end >= 0:
        ends.append(end + 1)
        end = data.find(b"\n", end + 1)
    return ends


# --------------------------------------------------------------------------------------------------
# Sinks


class Sink(Protocol):
    """Somewhere else to show the numbers. Opened with the first record, so that a resumed run knows its step."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


def _sink(name: str, directory: Path, config: Mapping[str, Any]) -> Sink:
    if name == "tensorboard":
        return _TensorBoard(_require("torch.utils.tensorboard", name), directory)
    if name == "wandb":
        return _WeightsAndBiases(_require("wandb", name), directory, config)
    raise ConfigError(f"unknown metric sink {name}; expected tensorboard or wandb")


def _require(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f'metrics were to go to {name}, which is not installed: pip install "twm[track]", or leave {name} out'
        ) from error


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, value in record.items() if isinstance(value, (int, float))}


class _TensorBoard:
    def __init__(self, module: ModuleType, directory: Path) -> None:
        self._module = module
        self._directory = directory / "tensorboard"
        self._writer: Any = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            # purge_step hides what an interrupted process wrote after the last checkpoint.
            self._writer = self._module.SummaryWriter(str(self._directory), purge_step=step)
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _WeightsAndBiases:
    def __init__(self, module: ModuleType, directory: Path, config: Mapping[str, Any]) -> None:
        self._module = module
        self._directory = directory
        self._config = dict(config)
        self._run: Any = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._run is None:
            self._run = self._module.init(
                project="twm",
                name=self._directory.name,
                id=self._identity(),
                resume="allow",
                dir=str(self._directory),
                config=self._config,
            )
        self._run.log(dict(values), step=step)

    def _identity(self) -> str:
        """An id of the run's own, kept beside the log, so that a resumed run goes on in the same place."""
        path = self._directory / "wandb.json"
        if not path.exists():
            write_json(path, {"id": uuid.uuid4().hex})
        return str(read_json(path)["id"])

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
