"""Films: of dreams, and of files."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from twm.studio import film
from twm.studio.dream import Dream, Model
from twm.studio.protocol import ProtocolError
from twm.studio.reality import Reality

ORIGIN = {"kind": "real", "seed": 4, "steps": 12, "by": "random", "beside": True}


def decoded(data: bytes, path: Path) -> list[np.ndarray]:
    path.write_bytes(data)
    capture = cv2.VideoCapture(str(path))
    frames = []
    while True:
        more, frame = capture.read()
        if not more:
            return frames
        frames.append(frame)


@pytest.mark.parametrize("kind", ["gif", "mp4", "webm"])
def test_a_film_shows_every_step(model: Model, tmp_path: Path, kind: str) -> None:
    """Two dreams, reality and the difference: four squares of 256 pixels with gaps of 4 between them."""
    reality = Reality(model, ORIGIN)
    dream = Dream(model, reality.start, rows=2)
    for _ in range(5):
        reality.step(int(dream.step([None, None], together=True).a[0]))
    data = film.encode(dream, reality, first=1, last=5, fps=15, kind=kind)
    frames = decoded(data, tmp_path / f"film.{kind}")
    assert len(frames) == 5
    assert frames[0].shape == (256, 4 * 256 + 3 * 4, 3)
    shown = film.colour(reality.frames[3].astype(np.uint8))
    apart = frames[2][:, 520:776].astype(int) - shown[..., ::-1]
    assert np.abs(apart).mean() < 12  # as good as such codecs are


def test_steps_must_exist(model: Model) -> None:
    dream = Dream(model, Reality(model, ORIGIN).start)
    for first, last in ((0, 1), (1, 0)):
        with pytest.raises(ProtocolError, match="expected steps between 0 and 0"):
            film.encode(dream, None, first=first, last=last, fps=15, kind="gif")


def test_files_become_pictures(tmp_path: Path) -> None:
    """700 frames: every third, 234 of them, shrunk to 160 pixels."""
    path = tmp_path / "long.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 15, (320, 200))
    for i in range(700):
        writer.write(np.full((200, 320, 3), i % 250, np.uint8))
    writer.release()
    frames = film.read(path)
    assert frames.shape == (234, 3, 100, 160)
    assert abs(int(frames[10].mean()) - 30) < 6
    (tmp_path / "no.mp4").write_bytes(b"no film")
    with pytest.raises(ProtocolError, match=r"no.mp4 holds no picture"):
        film.read(tmp_path / "no.mp4")
