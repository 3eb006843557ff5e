"""Runs on disk, read while a training may be writing them. Nothing is ever written, and no lock is taken."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twm.config import Config, ConfigError, flatten, from_dict
from twm.replay import FRAMES_FILE, STEPS_FILE, Replay
from twm.storage import Column
from twm.studio.dream import Model
from twm.studio.randomness import drawing
from twm.train import checkpoint, metrics
from twm.train.evaluate import WEIGHTS_FILE, load_agent
from twm.train.files import RunError, read_json
from twm.train.rundir import RunDir
from twm.types import EnvSpec

Point = tuple[float, float, float]
ELAPSED = "time/elapsed"
MAX_POINTS = 2_000
"""Points of a curve that are sent; longer ones are thinned out."""
MAX_BINS = 100
"""Bars of the histogram of visits."""
FILMS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
MAX_FILMS = 200

DEMO = Path(__file__).resolve().parent.parent / "data" / "demo"
"""The run that ships with the package."""


def demo_run() -> Path:
    """The directory of the run that ships with the package."""
    if not (DEMO / "config.json").is_file():
        raise ConfigError(
            "this installation has no checkpoint of its own: train one (twm train --preset tiny) and give its "
            "directory, twm studio RUN"
        )
    return DEMO


class Run:
    """One run directory."""

    def __init__(self, path: Path, *, which: str = "latest", device: str = "auto", name: str | None = None) -> None:
        self.directory = RunDir.open(path)
        self.name = name or path.resolve().name
        self._which, self._device = which, device
        self._model: Model | None = None
        self._replay: Replay | None = None
        self._seen: dict[str, int] = {}  # the checkpoints that were there when the model was read
        self._version: Any = None  # the one that it was read from
        self._metrics: tuple[Any, list[dict[str, Any]]] = (None, [])
        self._lock = threading.Lock()

    # ----------------------------------------------------------------------------------------------
    # For dreams

    def model(self) -> Model | None:
        """The newest weights that :meth:`refresh` has read; None before the first checkpoint."""
        return self._model

    def replay(self) -> Replay | None:
        """Experience up to the checkpoint of the model; None if the run has none on disk."""
        return self._replay

    def refresh(self) -> bool:
        """Read the newest checkpoint if there is another one than before; True if so. For a thread of its own."""
        with self._lock:
            directory = self.directory.checkpoints
            seen = _versions(self.directory)
            if not seen or seen == self._seen:
                return False
            try:
                with drawing:  # fresh networks draw their first weights
                    agent, config, step = load_agent(self.directory.path, which=self._which, device=self._device)
            except RuntimeError as error:  # torch's word for weights that do not fit
                raise RunError(
                    f"the checkpoints of {self.directory.path} do not fit this version of twm: open them with the one "
                    "that made them, or train again"
                ) from error
            self._seen = seen
            # While a run pretrains, its interactions stand still and a checkpoint is replaced under its name.
            version = (step, seen.get(f"step-{step:09d}"))
            if version == self._version:
                return False
            saved = checkpoint.load_latest(directory, prefix=("replay/", "counters/")) if directory.is_dir() else None
            updates = (
                saved.state.get("counters", {}).get("updates") if saved is not None and saved.step == step else None
            )
            self._model, self._version = Model(agent, config, step, updates), version
            self._replay = None if saved is None else self._open_replay(agent.spec, saved.state["replay"])
            return True

    def _open_replay(self, spec: EnvSpec, saved: dict[str, Any]) -> Replay | None:
        """Read-only: the files may be a training's, or lie where nobody may write."""
        paths = [self.directory.replay / name for name in (FRAMES_FILE, STEPS_FILE)]
        if not all(path.is_file() for path in paths):
            return None
        try:
            frames, steps = (np.asarray(np.lib.format.open_memmap(path, mode="r")) for path in paths)
        except (OSError, ValueError):  # cut short: dreams can still begin in the real environment
            return None
        length = min(int(saved["length"]), len(frames), len(steps))
        if frames.shape[1:] != spec.frame_shape:
            return None
        visits = np.asarray(saved["visits"], np.int32)[:length]
        return Replay(spec, Column(frames), Column(steps), length, visits)

    # ----------------------------------------------------------------------------------------------
    # For the page about training

    def config(self) -> Config:
        return from_dict(self.directory.config())

    def summary(self) -> dict[str, Any]:
        """How far the run is."""
        config, records = self.config(), self._records()
        done = max((int(record.get("interactions") or 0) for record in records), default=0)
        return {
            "name": self.name,
            "env": config.env,
            "interactions": done,
            "target": config.train.interactions,
            "checkpoint": None if self._model is None else self._model.step,
            "finished": self.directory.eval_path.is_file(),
        }

    def curves(self, keys: Sequence[str]) -> dict[str, Any]:
        """Every key of metrics.jsonl, and the points (interactions, seconds, value) of those asked for."""
        records = self._records()
        names = sorted({key for record in records for key, value in record.items() if _is_number(value)})
        curves: dict[str, list[Point]] = {key: [] for key in keys}
        elapsed = 0.0  # not every record says it: the one before it does
        for record in records:
            elapsed = record[ELAPSED] if _is_number(record.get(ELAPSED)) else elapsed
            done = record.get("interactions", record.get("updates"))  # recorded episodes: there are only updates
            for key in curves:
                if _is_number(record.get(key)):
                    curves[key].append((done or 0, elapsed, record[key]))
        thinned = {key: thin(points, MAX_POINTS) for key, points in curves.items()}
        return {"keys": names, "records": len(records), "curves": thinned}

    def facts(self) -> dict[str, Any]:
        """Configuration, where it differs from the paper's, the final evaluation, machine, films."""
        config = self.config()
        paper = flatten(Config())
        options = [
            {"option": path, "value": _text(value), "paper": _text(paper[path]), "differs": value != paper[path]}
            for path, value in flatten(config).items()
        ]
        return {
            **self.summary(),
            "options": options,
            "evaluation": _read(self.directory.eval_path),
            "machine": _read(self.directory.machine_path),
            "films": [{"name": path.name, "bytes": path.stat().st_size} for path in self.films()],
        }

    def visits(self) -> dict[str, Any]:
        """How often entries of the replay were drawn: means over equal ranges of entries, oldest first."""
        visits = self._replay.visits if self._replay is not None else np.zeros(0, np.int32)
        if not len(visits):
            return {"entries": 0, "edges": [], "means": [], "total": 0}
        edges = np.linspace(0, len(visits), min(MAX_BINS, len(visits)) + 1).round().astype(int)
        means = [float(visits[a:b].mean()) for a, b in zip(edges, edges[1:])]
        return {"entries": len(visits), "edges": edges.tolist(), "means": means, "total": int(visits.sum())}

    def films(self) -> list[Path]:
        """Films in the run directory, newest first; never one that lies elsewhere (links are not followed out)."""
        root = self.directory.path.resolve()
        found = [
            path
            for pattern in ("*", "*/*")
            for path in root.glob(pattern)
            if path.suffix.lower() in FILMS and path.is_file() and path.resolve().is_relative_to(root)
        ]
        return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:MAX_FILMS]

    def _records(self) -> list[dict[str, Any]]:
        path = self.directory.metrics_path
        with self._lock:
            if not path.is_file():
                return []
            stat = path.stat()
            version = (stat.st_mtime_ns, stat.st_size)
            if self._metrics[0] != version:
                self._metrics = (version, metrics.read(path))
            return self._metrics[1]


# --------------------------------------------------------------------------------------------------
# The film strip


def strip(replay: Replay, first: int, stride: int, count: int) -> tuple[dict[str, Any], npt.NDArray[Any]]:
    """Every ``stride``-th entry from ``first`` on: what is known of each, and its frame (n, *frame)."""
    indices = np.arange(first, min(len(replay), first + stride * count), stride)
    newest = replay.spec.frame_shape[0]
    frames = replay.observations(indices)[:, -newest:]
    starts = np.flatnonzero(replay.is_episode_start)
    rewards = [float(replay.rewards[i : i + stride].sum()) for i in indices]
    episode = np.searchsorted(starts, indices, side="right")
    facts = {
        "length": len(replay),
        "indices": indices.tolist(),
        "episodes": episode.tolist(),
        "since": (indices - starts[episode - 1]).tolist(),
        "rewards": rewards,  # from each entry up to the next one shown
    }
    return facts, frames


def last_episodes(replay: Replay, most: int = 12) -> list[dict[str, Any]]:
    """The newest episodes of the replay, newest first: where each begins, how long it is and its rewards."""
    starts = np.flatnonzero(replay.is_episode_start)
    ends = np.append(starts[1:], len(replay))
    episodes = [
        {"first": int(a), "steps": int(b - a), "score": float(replay.rewards[a:b].sum())} for a, b in zip(starts, ends)
    ]
    return episodes[::-1][:most]


def thin(points: list[Point], most: int) -> list[Point]:
    """At most ``most`` of them, evenly, with the first and the last."""
    if len(points) <= most:
        return points
    chosen = np.linspace(0, len(points) - 1, most).round().astype(int)
    return [points[i] for i in chosen]


def _versions(directory: RunDir) -> dict[str, int]:
    """Every checkpoint, or the weights of an export, with the time it was written."""
    found = {}
    for path in [*directory.checkpoints.glob("step-*"), directory.path / WEIGHTS_FILE]:
        with suppress(OSError):  # not there, or being replaced at this moment
            found[path.name] = path.stat().st_mtime_ns
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _read(path: Path) -> Any:
    return read_json(path) if path.is_file() else None
