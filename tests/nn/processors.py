"""The C files as other processors would have them built."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from twm import native
from twm.nn import products

UNITS = list(products.WORTH_IT)
EMULATED_TILES = Path(__file__).with_name("emulated_tiles.h")


@contextmanager
def built_for(unit: str) -> Iterator[None]:
    """For a processor that multiplies matrices on this. Tiles that this one lacks are emulated."""
    tiles, halves = unit.startswith("tiles"), unit == "tiles of float16"
    with pytest.MonkeyPatch.context() as patch:
        if tiles and not (native.halves() if halves else native.tiles()):
            version = zlib.crc32(EMULATED_TILES.read_bytes())  # libraries are known by source and flags
            flags = ["-include", str(EMULATED_TILES), f"-DEMULATED={version}"]
            patch.setattr(native, "FLAGS", (*native.FLAGS, *flags))
        patch.setattr(native, "tiles", lambda: tiles)
        patch.setattr(native, "halves", lambda: halves)
        native._load.cache_clear()
        try:
            yield
        finally:
            native._load.cache_clear()


def wide_vectors() -> bool:
    """Whether this processor has vectors of 16 numbers (AVX-512), without which there are no products in C."""
    return hasattr(native.load(products.SOURCE), "multiply")
