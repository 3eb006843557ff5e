"""Films of real games, as .mp4 files."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import cv2
import numpy.typing as npt

from twm.config import ConfigError


class Film:
    """Add RGB frames (height, width, 3) uint8; the file is complete when the block ends."""

    def __init__(self, path: Path, fps: float = 15.0, scale: int = 2) -> None:
        if path.suffix.lower() != ".mp4":
            raise ConfigError(f"a video is written as .mp4, but the file is called {path.name}")
        self.path, self.fps, self.scale = path, fps, scale
        self._writer: cv2.VideoWriter | None = None

    def add(self, frame: npt.NDArray[Any]) -> None:
        height, width = (self.scale * n for n in frame.shape[:2])
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = cv2.VideoWriter(str(self.path), cv2.VideoWriter.fourcc(*"mp4v"), self.fps, (width, height))
            if not self._writer.isOpened():
                raise ConfigError(f"cannot write a video to {self.path}: check that the directory can be written to")
        large = cv2.resize(frame, (width, height), interpolation=cv2.INTER_NEAREST)
        self._writer.write(cv2.cvtColor(large, cv2.COLOR_RGB2BGR))

    def __enter__(self) -> Film:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.release()
