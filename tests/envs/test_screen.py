"""Both ways to a small screen give the same pixels, every one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from twm import native
from twm.config import EnvConfig
from twm.envs import known_games, make_env
from twm.envs.screen import PlainScreen, RawScreen, Screen, make_screen


class Pictures:
    """An emulator that shows any colours; which gray they have is drawn anew."""

    def __init__(self, shape: tuple[int, int], seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.grays = self.rng.integers(0, 256, 256).astype(np.uint8)
        self.colours = np.zeros(shape, np.uint8)

    def change(self) -> None:
        """A patch somewhere, perhaps an empty one, of colours up to a highest one that grows."""
        height, width = self.colours.shape
        top, left = self.rng.integers(height), self.rng.integers(width)
        patch = self.colours[top : top + self.rng.integers(height), left : left + self.rng.integers(width // 4)]
        patch[:] = self.rng.integers(0, self.rng.integers(1, 257), patch.shape)

    def getScreen(self, buffer: npt.NDArray[np.uint8]) -> None:  # noqa: N802
        buffer[:] = self.colours

    def getScreenGrayscale(self, buffer: npt.NDArray[np.uint8]) -> None:  # noqa: N802
        buffer[:] = self.grays[self.colours]


def both(shape: tuple[int, int], size: int) -> tuple[Screen, Screen]:
    raw, plain = make_screen(shape, size, gray=True), PlainScreen(shape, size)
    if not isinstance(raw, RawScreen):
        pytest.skip("there is no C compiler, or it is switched off")
    return raw, plain


def same(raw: Screen, plain: Screen) -> bool:
    return np.array_equal(raw.merged, plain.merged) and np.array_equal(raw.small(), plain.small())


@pytest.mark.parametrize("frames", [("first", "last"), ("last",)])
@pytest.mark.parametrize(("shape", "size"), [((210, 160), 64), ((250, 160), 64), ((35, 80), 32), ((16, 16), 16)])
def test_whatever_comes_the_pixels_are_the_same(shape: tuple[int, int], size: int, frames: tuple[str, ...]) -> None:
    """Also after interactions that the end of a game cut short, before or between their frames."""
    raw, plain = both(shape, size)
    ale = Pictures(shape, seed=size)
    for t in range(300):
        ale.change()
        saved = ale.rng.integers(0, 256, shape).astype(np.uint8)
        if t == 0 or ale.rng.random() < 0.1:
            for screen in (raw, plain):
                screen.look(ale)
        if ale.rng.random() < 0.1:
            for screen in (raw, plain):
                screen.look(ale)
                screen.load(saved)
        assert same(raw, plain)
        for name in frames[: ale.rng.integers(len(frames)) if ale.rng.random() < 0.2 else None]:
            ale.change()
            for screen in (raw, plain):
                getattr(screen, name)(ale)
        for screen in (raw, plain):
            screen.merge()
        assert same(raw, plain)


def check_game(game: str, steps: int) -> None:
    pytest.importorskip("ale_py")
    env = make_env(game, EnvConfig(), training=False)
    with native.plain_only():
        other = make_env(game, EnvConfig(), training=False)
    assert np.array_equal(env.reset(seed=1), other.reset(seed=1))
    for a in np.random.default_rng(0).integers(env.spec.num_actions, size=steps):
        step, expected = env.step(a), other.step(a)
        assert np.array_equal(step.observation, expected.observation)
        if step.game_over:
            assert np.array_equal(env.reset(), other.reset())


@pytest.mark.parametrize("game", ["Breakout", "AirRaid"])  # AirRaid: other colours, 250 rows
def test_games_look_the_same(game: str) -> None:
    check_game(game, 150)


@pytest.mark.slow
@pytest.mark.parametrize("game", known_games()[1:])
def test_every_game_looks_the_same(game: str) -> None:
    check_game(game, 300)


def test_where_c_is_used() -> None:
    raw, _ = both((210, 160), 64)
    assert isinstance(raw, RawScreen)
    with native.plain_only():
        assert isinstance(make_screen((210, 160), 64, gray=True), PlainScreen)
    for shape, size, gray in [((210, 160), 64, False), ((210, 160), 84, True), ((210, 40), 8, True)]:
        assert isinstance(make_screen(shape, size, gray=gray), PlainScreen)
