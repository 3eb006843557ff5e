"""Dreams as films to keep: GIF, MP4 or WebM."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from twm.studio.dream import Dream
from twm.studio.inside import picture
from twm.studio.protocol import ProtocolError
from twm.studio.reality import Reality

Pixels = npt.NDArray[np.uint8]

FORMATS = {"gif": "image/gif", "mp4": "video/mp4", "webm": "video/webm"}
SIDE = 256
"""Pixels along the side of each picture, about: small frames are enlarged by a whole factor."""
GAP = 4
CHUNK = 64  # steps decoded at a time

MAX_FRAMES = 300
"""Of a film that is shown in the page."""
MAX_SIDE = 160


def encode(dream: Dream, reality: Reality | None, *, first: int, last: int, fps: float, kind: str) -> bytes:
    """The steps ``first`` to ``last`` of a dream: its rows beside each other, then reality and the difference."""
    if not 0 <= first <= last <= dream.length:
        raise ProtocolError(f"expected steps between 0 and {dream.length}, but came {first} to {last}")
    # A copy of the lists: the dream may go on meanwhile.
    moments = dream.trail[first : last + 1]
    real = None if reality is None else reality.frames[first : last + 1]

    def pictures() -> Iterator[Pixels]:
        for begin in range(0, len(moments), CHUNK):
            chunk = moments[begin : begin + CHUNK]
            for offset, frames in enumerate(dream.frames(chunk)):
                panels = [colour(picture(frame)) for frame in frames]
                if real is not None and begin + offset < len(real):
                    actual = colour(picture(real[begin + offset]))
                    apart: Pixels = np.abs(panels[0].astype(np.int16) - actual).astype(np.uint8)
                    panels += [actual, apart]
                yield side_by_side(panels)

    return write(pictures(), fps=fps, kind=kind)


def write(pictures: Iterator[Pixels], *, fps: float, kind: str) -> bytes:
    """A film of RGB pictures (height, width, 3)."""
    import imageio.v2 as imageio

    with tempfile.TemporaryDirectory(prefix="twm-studio-") as directory:
        path = Path(directory) / f"film.{kind}"
        options: dict[str, Any] = {"fps": fps}
        if kind == "gif":
            options = {"duration": 1000 / fps, "loop": 0, "subrectangles": True}
        elif kind == "mp4":
            options |= {"codec": "libx264", "pixelformat": "yuv420p", "macro_block_size": 2, "quality": 8}
        else:
            options |= {"codec": "libvpx", "pixelformat": "yuv420p", "macro_block_size": 2, "bitrate": 2_000_000}
        writer: Any
        with imageio.get_writer(path, **options) as writer:
            for frame in pictures:
                writer.append_data(frame)
        return path.read_bytes()


def colour(frame: Pixels) -> Pixels:
    """(C, height, width) to an enlarged (height, width, 3)."""
    factor = max(1, SIDE // max(frame.shape[1:]))
    image = np.repeat(frame.transpose(1, 2, 0), 3 // frame.shape[0], 2)
    enlarged: Pixels = image.repeat(factor, 0).repeat(factor, 1)
    return enlarged


def side_by_side(panels: list[Pixels]) -> Pixels:
    """In one row with gaps, of even height and width as video codecs want them."""
    height = panels[0].shape[0]
    gap = np.full((height, GAP, 3), 24, np.uint8)
    row = np.concatenate([piece for panel in panels for piece in (panel, gap)][:-1], 1)
    return np.pad(row, ((0, height % 2), (0, row.shape[1] % 2), (0, 0)))


def read(path: Path) -> Pixels:
    """The pictures (n, 3, height, width) of a film file, small enough for a page, evenly chosen if there are many."""
    capture = cv2.VideoCapture(str(path))
    try:
        total = max(1, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
        every = max(1, -(-total // MAX_FRAMES))
        pictures: list[Pixels] = []
        index = 0
        while len(pictures) < MAX_FRAMES and capture.grab():
            if index % every == 0:
                _, frame = capture.retrieve()
                pictures.append(_small(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)))
            index += 1
    finally:
        capture.release()
    if not pictures:
        raise ProtocolError(f"{path.name} holds no picture that can be read")
    return np.stack(pictures)


def _small(frame: Any) -> Pixels:
    scale = min(1.0, MAX_SIDE / max(frame.shape[:2]))
    if scale < 1:
        frame = cv2.resize(frame, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    small: Pixels = np.ascontiguousarray(frame.transpose(2, 0, 1), np.uint8)
    return small
