"""Atari games: a thin layer over the emulator of ale-py.

What one interaction is follows the field's habits, pixel for pixel as Gymnasium's AtariPreprocessing does it: the
action is held for four frames, the last two are merged by their maximum (sprites flicker), and the result is shrunk
to a small gray picture. The layer exists because a running game must be saved and restored bit for bit, and
because half of Gymnasium's time goes into screens that nobody looks at.

A saved state has two traps, both found by playing all games from restored states and comparing every frame:

- The screen is not part of it. The merged screen is therefore saved beside it.
- Nor is whether the emulator stopped in the middle of drawing a frame. In some games it does so right after a reset
  (Qbert among the 26), so a state is restored into an emulator brought to the same condition: just reset, or one
  frame on. Five games stop so in mid-play too; they say that they cannot be saved.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from twm.config import ConfigError, EnvConfig
from twm.envs.base import (
    EnvState,
    FrameStack,
    check_action,
    check_same,
    check_seed,
    must_reset,
    pack_json,
    unpack_json,
)
from twm.envs.screen import make_screen
from twm.types import EnvSpec, FrameArray, Outcome, Step

ATARI_100K = (
    "Alien", "Amidar", "Assault", "Asterix", "BankHeist", "BattleZone", "Boxing", "Breakout", "ChopperCommand",
    "CrazyClimber", "DemonAttack", "Freeway", "Frostbite", "Gopher", "Hero", "Jamesbond", "Kangaroo", "Krull",
    "KungFuMaster", "MsPacman", "Pong", "PrivateEye", "Qbert", "RoadRunner", "Seaquest", "UpNDown",
)  # fmt: skip
"""The 26 games of the benchmark."""

CANNOT_SAVE = frozenset({"MiniatureGolf", "TicTacToe3D", "VideoCheckers", "VideoChess", "YarsRevenge"})
"""Games (none of the 26) whose saved states do not always go on exactly."""

LIFE_MUST_REMAIN = frozenset({"Qbert"})
"""Where the last life is gone some frames before the game is over: only a loss that leaves a life ends an episode."""


@functools.cache
def games() -> dict[str, str]:
    """Every game that ale-py ships and can play alone: its name, e.g. UpNDown, and its ROM's, up_n_down."""
    ale_py = _ale_py()
    # Loading a ROM of another kind would end the process, so none is offered.
    ids = [rom for rom in ale_py.roms.get_all_rom_ids() if ale_py.ALEInterface.isSupportedROM(_rom_path(rom))]
    return {rom.title().replace("_", ""): rom for rom in sorted(ids)}


class Atari:
    """One game.

    ``training`` lets a lost life end the episode (if the options say so); the game itself is the same either way.
    """

    recipe: Mapping[str, Any]
    """The arguments of ``make_env`` that make this environment again, in another process."""

    def __init__(self, game: str, options: EnvConfig, *, training: bool, noop_max: int) -> None:
        self._actions, screen = _facts(game)
        self._noop, self._fire = _ale_py().Action.NOOP, _ale_py().Action.FIRE
        self._presses_fire = len(self._actions) > 1 and self._actions[1] == self._fire
        self._life_ends_episode = training and options.end_on_life_loss
        self._life_must_remain = game in LIFE_MUST_REMAIN
        self._noop_max, self._max_steps, self._skip = noop_max, options.max_steps, options.frame_skip

        shape = (1 if options.gray else 3, options.size, options.size)
        self.spec = EnvSpec(game, shape, options.stack, tuple(action.name for action in self._actions))
        self.recipe = {
            "name": game,
            "options": dataclasses.asdict(options),
            "training": training,
            "noop_max": noop_max,
        }
        self._screen = make_screen(screen, options.size, gray=options.gray)
        self._stack = FrameStack(shape, options.stack)
        self._picture: npt.NDArray[np.uint8] | None = None
        self._filmed = False

        # Loaded when first needed: a vector of environments moves most of them to other processes.
        self._ale: Any = None
        self._pristine: Any = None
        self._rng = np.random.default_rng()
        self._running = False
        self._game_over = True  # the next reset starts a new game
        self._untouched = True  # no frame played since the emulator was reset
        self._unseen = False  # the present screen is not part of the stack yet
        self._lives = self._steps = 0

    # ----------------------------------------------------------------------------------------------
    # Play

    def reset(self, seed: int | None = None) -> FrameArray:
        if seed is not None or self._ale is None:
            self._load()
            self._reseed(seed)
        if self._game_over or self._running:
            self._start_game()  # otherwise only a life was lost: the game goes on
        self._running, self._game_over = True, False
        self._unseen = False
        return self._stack.restart(self._frame())

    def step(self, a: int) -> Step:
        outcome = self.play(a)
        return Step(self.observe(), *outcome)

    def play(self, a: int) -> Outcome:
        """A step without its observation, which :meth:`observe` gives.

        The emulator drives everything else out of the caches. Where several games are played, it pays to let all of
        them play before the first screen is looked at.
        """
        action = self._actions[check_action(a, self.spec)]
        if not self._running:
            raise must_reset(self.spec.name)
        reward = self._play(action)
        self._steps += 1
        life_lost = self._life_lost()
        if life_lost and self._presses_fire and not self._ale.game_over():
            # Pressed here and not in reset(), so that training and evaluation see the same game and the same score.
            self.observe()
            reward += self._play(self._fire)
            self._unseen = not self._life_ends_episode
        over, timeout = self._ale.game_over(), self._steps >= self._max_steps
        terminated = over or (life_lost and self._life_ends_episode)
        truncated = timeout and not terminated
        self._game_over = over or timeout
        self._running = not (terminated or truncated)
        return Outcome(float(reward), terminated, truncated, self._game_over)

    def observe(self) -> FrameArray:
        """What the player sees after :meth:`play`."""
        if self._unseen:
            self._stack.push(self._frame())
            self._unseen = False
        return self._stack.array

    def render(self) -> npt.NDArray[np.uint8]:
        """From the first call on, pictures merge the last two frames, as observations do."""
        if self._ale is None:
            raise must_reset(self.spec.name)
        self._filmed = True
        return self._rendered().copy()

    def close(self) -> None:
        """Free the emulator; a later reset would load it again."""
        self._ale = self._pristine = None
        self._running, self._game_over = False, True

    def _load(self) -> None:
        if self._ale is None:
            self._ale = _load(self.spec.name)
            self._pristine = self._ale.cloneState(include_rng=True)

    def _reseed(self, seed: int | None) -> None:
        """Only the number of no-ops is random. It is drawn as ale-py's environment with Gymnasium's AtariPreprocessing
        draws it, so that a seed means the same game there.

        Some games remember the one before through a reset, so the emulator goes back to how it was loaded.
        """
        words = np.random.SeedSequence(None if seed is None else check_seed(seed)).generate_state(2)
        self._rng = np.random.default_rng(int(words[0]))
        self._ale.restoreState(self._pristine)
        self._game_over = True

    def _start_game(self) -> None:
        """A new game: FIRE where the game waits for it, then a random number of no-ops (single frames)."""
        self._reset_emulator()
        if self._presses_fire:
            self._play(self._fire)
        noops = int(self._rng.integers(1, self._noop_max + 1)) if self._noop_max else 0
        for _ in range(noops):
            self._ale.act(self._noop)
            self._untouched = False
            if self._ale.game_over():
                self._reset_emulator()
        if noops or not self._presses_fire:
            self._look()
        # Read only now: some games have no lives, or too few, until a frame has been played.
        self._lives, self._steps = self._ale.lives(), 0

    def _reset_emulator(self) -> None:
        self._ale.reset_game()
        self._untouched = True
        self._look()

    def _look(self) -> None:
        self._screen.look(self._ale)
        self._picture = None

    def _play(self, action: Any) -> int:
        """Hold ``action`` for the skipped frames and merge the last two. If the game ends on the way, what was
        not seen keeps the pixels of the interaction before."""
        reward, last, picture_before = 0, self._skip - 1, None
        ale, screen = self._ale, self._screen
        self._untouched, self._unseen, self._picture = False, True, None
        for t in range(self._skip):
            reward += ale.act(action)
            if ale.game_over():
                break
            if t == last - 1:
                screen.first(ale)
                picture_before = ale.getScreenRGB() if self._filmed else None
            elif t == last:
                screen.last(ale)
        screen.merge()
        if picture_before is not None:
            self._picture = np.maximum(picture_before, ale.getScreenRGB())
        return reward

    def _life_lost(self) -> bool:
        lives = self._ale.lives()
        lost = lives < self._lives and (lives > 0 or not self._life_must_remain)
        self._lives = lives
        return bool(lost)

    def _frame(self) -> npt.NDArray[np.uint8]:
        small = self._screen.small()
        return small[None] if small.ndim == 2 else small.transpose(2, 0, 1)

    def _rendered(self) -> npt.NDArray[np.uint8]:
        if self._picture is None:
            self._picture = self._ale.getScreenRGB()
        return self._picture

    # ----------------------------------------------------------------------------------------------
    # Save and restore

    def save(self) -> EnvState | None:
        if self._ale is None:
            raise must_reset(self.spec.name)
        if self.spec.name in CANNOT_SAVE:
            return None
        counters = [self._lives, self._steps]
        flags = [self._running, self._game_over, self._untouched, self._filmed]
        meta = {**self._identity(), "counters": counters, "flags": flags, "rng": self._rng.bit_generator.state}
        emulator = self._ale.cloneState(include_rng=True).serialize()
        return {
            "meta": pack_json(meta),
            "emulator": np.frombuffer(emulator, np.uint8).copy(),
            "screen": self._screen.merged.copy(),
            "picture": self._rendered().copy(),
            "stack": self.observe().copy(),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> FrameArray:
        meta = unpack_json(state["meta"])
        check_same(meta, self._identity())
        self._lives, self._steps = meta["counters"]
        self._running, self._game_over, self._untouched, self._filmed = meta["flags"]
        self._rng.bit_generator.state = meta["rng"]
        self._load()
        self._ale.reset_game()
        if not self._untouched:
            self._ale.act(self._noop)
        self._ale.restoreState(_ale_py().ALEState(state["emulator"].tobytes()))
        self._look()
        self._screen.load(state["screen"])
        self._picture = np.array(state["picture"], np.uint8)
        self._unseen = False
        return self._stack.load(state["stack"])

    def _identity(self) -> dict[str, Any]:
        """What must agree for a state to go on exactly; the emulator's bytes belong to its version."""
        spec = self.spec
        shape = {"frame_shape": list(spec.frame_shape), "stack": spec.stack, "frame_skip": self._skip}
        return {"env": spec.name, **shape, "ale-py": str(_ale_py().__version__)}


def _ale_py() -> Any:
    try:
        import ale_py
        import ale_py.roms
    except ImportError as error:
        raise ConfigError('Atari games need ale-py, which is not installed: pip install "twm[atari]"') from error
    return ale_py


def _rom_path(rom: str) -> Any:
    return _ale_py().roms.get_rom_path(rom)


def _load(game: str) -> Any:
    """An emulator with the game in it: no sticky actions, and hence nothing random (its seed changes no frame)."""
    ale_py = _ale_py()
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 0)
    ale.loadROM(_rom_path(games()[game]))
    return ale


@functools.cache
def _facts(game: str) -> tuple[tuple[Any, ...], tuple[int, int]]:
    """The minimal actions, and height and width of the screen; kept, because loading a game is slow."""
    ale = _load(game)
    height, width = ale.getScreenDims()
    return tuple(ale.getMinimalActionSet()), (height, width)
