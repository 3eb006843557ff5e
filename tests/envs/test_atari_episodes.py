"""Where Atari's episodes end and games go on, by hand on an emulator that follows a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from twm.config import EnvConfig
from twm.envs.atari import Atari

ale_py = pytest.importorskip("ale_py")


class Script:
    """An emulator whose frame t shows the gray value t, gives the reward 1, and has lives and an end as told."""

    def __init__(self, lives: Callable[[int], int], over: Callable[[int], bool]) -> None:
        self._lives, self._over = lives, over
        self.t = self.resets = 0
        self.played: list[str] = []

    def act(self, action: Any) -> int:
        self.t += 1
        self.played.append(action.name)
        return 1

    def reset_game(self) -> None:
        self.t, self.played = 0, []
        self.resets += 1

    def lives(self) -> int:
        return self._lives(self.t)

    def game_over(self) -> bool:
        return self._over(self.t)

    def getScreen(self, buffer: Any) -> None:  # noqa: N802
        buffer[:] = 255 - self.t

    def getScreenGrayscale(self, buffer: Any) -> None:  # noqa: N802
        buffer[:] = self.t

    def cloneState(self, *, include_rng: bool) -> None:  # noqa: N802
        return None

    def restoreState(self, state: None) -> None:  # noqa: N802
        return None


@pytest.fixture(params=[8, 64])  # pixels: by the plain screen and by the one in C
def scripted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Atari, Script]]:
    def make(
        game: str = "Breakout",
        *,
        lives: Callable[[int], int] = lambda t: 0,
        over: Callable[[int], bool] = lambda t: False,
        actions: tuple[str, ...] = ("NOOP", "FIRE", "LEFT"),
        training: bool = True,
        noop_max: int = 0,
        **options: Any,
    ) -> tuple[Atari, Script]:
        script = Script(lives, over)
        members = tuple(getattr(ale_py.Action, name) for name in actions)
        monkeypatch.setattr("twm.envs.atari._load", lambda game: script)
        monkeypatch.setattr("twm.envs.atari._facts", lambda game: (members, (210, 160)))
        options = {"size": request.param, "stack": 2, **options}
        return Atari(game, EnvConfig(**options), training=training, noop_max=noop_max), script

    return make


def grays(observation: Any) -> list[int]:
    """The gray value of each frame of the stack; each frame shows one value only."""
    assert (observation == observation[:, :1, :1]).all()
    return [int(value) for value in observation[:, 0, 0]]


def test_four_frames_and_the_later_two_merged(scripted: Any) -> None:
    env, script = scripted(actions=("NOOP", "LEFT"))
    assert grays(env.reset(seed=0)) == [0, 0]
    step = env.step(1)
    assert script.played == ["LEFT"] * 4
    assert step.reward == 4.0
    assert grays(step.observation) == [0, 4]  # max(3, 4)
    assert grays(env.step(0).observation) == [4, 8]


def test_fire_comes_first_and_no_ops_after(scripted: Any) -> None:
    env, script = scripted(noop_max=30)
    env.reset(seed=3)
    noops = len(script.played) - 4
    assert script.played == ["FIRE"] * 4 + ["NOOP"] * noops
    assert 1 <= noops <= 30
    drawn = set()
    for _ in range(300):
        env.reset()
        drawn.add(len(script.played) - 4)
    assert drawn == set(range(1, 31))


def test_a_game_without_fire_is_left_alone(scripted: Any) -> None:
    env, script = scripted(actions=("NOOP", "UP", "FIRE"), lives=lambda t: 2 if t < 6 else 1)
    env.reset(seed=0)
    env.step(0)
    assert env.step(0).terminated
    assert script.played == ["NOOP"] * 8


def test_a_lost_life_ends_the_episode_but_not_the_game(scripted: Any) -> None:
    """FIRE takes frames 1-4 and the step 5-8. The life is gone from frame 7: FIRE is pressed again, frames 9-12."""
    env, script = scripted(lives=lambda t: 3 if t < 7 else 2)
    assert grays(env.reset(seed=0)) == [4, 4]
    step = env.step(2)
    assert (step.terminated, step.truncated, step.game_over) == (True, False, False)
    assert grays(step.observation) == [4, 8]  # what was seen when the life went
    assert step.reward == 8.0  # with what FIRE brought: the score stays complete
    assert script.played == ["FIRE"] * 4 + ["LEFT"] * 4 + ["FIRE"] * 4
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)
    assert grays(env.reset()) == [12, 12]  # the same game, a stack of its own
    assert script.resets == 1
    assert not env.step(2).terminated


def test_a_lost_life_is_passed_over_in_evaluation(scripted: Any) -> None:
    env, script = scripted(lives=lambda t: 3 if t < 7 else 2, training=False)
    env.reset(seed=0)
    step = env.step(2)
    assert (step.terminated, step.truncated, step.game_over) == (False, False, False)
    assert grays(step.observation) == [8, 12]
    assert step.reward == 8.0
    assert script.played[-4:] == ["FIRE"] * 4
    assert grays(env.step(2).observation) == [12, 16]


def test_the_options_can_let_episodes_go_on_after_a_lost_life(scripted: Any) -> None:
    env, _ = scripted(lives=lambda t: 3 if t < 7 else 2, end_on_life_loss=False)
    env.reset(seed=0)
    assert not env.step(2).terminated


def test_lives_that_appear_after_the_reset_are_not_losses(scripted: Any) -> None:
    """Amidar reads 0 lives until its first frame; an extra life is no loss either."""
    env, _ = scripted(actions=("NOOP", "UP"), lives=lambda t: 0 if t < 1 else 3 if t < 6 else 4)
    env.reset(seed=0)
    assert not env.step(0).terminated
    assert not env.step(0).terminated


@pytest.mark.parametrize(("game", "terminated"), [("Qbert", False), ("BankHeist", True)])
def test_qbert_ends_with_the_game_when_no_life_remains(scripted: Any, game: str, terminated: bool) -> None:
    """Its lives read 0 from frame 7, the game is over at 12. Elsewhere the last life may well be played with 0."""
    env, script = scripted(game, lives=lambda t: 1 if t < 7 else 0, over=lambda t: t >= 12)
    env.reset(seed=0)
    step = env.step(2)
    assert (step.terminated, step.game_over) == (terminated, terminated)  # the FIRE of BankHeist runs into the end
    if game == "Qbert":
        assert script.played == ["FIRE"] * 4 + ["LEFT"] * 4
        step = env.step(2)
        assert (step.terminated, step.truncated, step.game_over) == (True, False, True)


def test_qbert_ends_an_episode_while_lives_remain(scripted: Any) -> None:
    env, _ = scripted("Qbert", lives=lambda t: 2 if t < 7 else 1)
    env.reset(seed=0)
    step = env.step(2)
    assert (step.terminated, step.game_over) == (True, False)


def test_the_end_of_the_game_stops_the_frames(scripted: Any) -> None:
    """Over after two of four frames: half the reward, the old pixels, and a new game at the next reset."""
    env, script = scripted(over=lambda t: t >= 6)
    env.reset(seed=0)
    step = env.step(2)
    assert (step.terminated, step.truncated, step.game_over) == (True, False, True)
    assert step.reward == 2.0
    assert grays(step.observation) == [4, 4]
    env.reset()
    assert script.resets == 2


def test_the_time_limit_truncates_the_whole_game(scripted: Any) -> None:
    """Steps are counted over lost lives: the life goes in step 1, the limit comes in step 3."""
    env, script = scripted(lives=lambda t: 3 if t < 7 else 2, max_steps=3)
    env.reset(seed=0)
    assert env.step(2).terminated
    env.reset()
    env.step(2)
    step = env.step(2)
    assert (step.terminated, step.truncated, step.game_over) == (False, True, True)
    env.reset()
    assert script.resets == 2


def test_a_life_lost_at_the_time_limit_is_terminated(scripted: Any) -> None:
    env, _ = scripted(lives=lambda t: 3 if t < 7 else 2, max_steps=1)
    env.reset(seed=0)
    step = env.step(2)
    assert (step.terminated, step.truncated, step.game_over) == (True, False, True)


def test_a_seed_starts_a_new_game_even_after_a_lost_life(scripted: Any) -> None:
    env, script = scripted(lives=lambda t: 3 if t < 7 else 2)
    env.reset(seed=0)
    env.step(2)
    env.reset(seed=1)
    assert script.resets == 2


def test_frame_skip_one_merges_nothing(scripted: Any) -> None:
    env, script = scripted(actions=("NOOP", "UP"), frame_skip=1)
    env.reset(seed=0)
    assert grays(env.step(1).observation) == [0, 1]
    assert grays(env.step(0).observation) == [1, 2]
    assert script.played == ["UP", "NOOP"]
