"""Film strips and coloured frame stacks: which frames, actions and sums stand where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small import image_spec, vector_spec

from twm.analysis import trajectories
from twm.config import ConfigError


def frames(n: int, size: int = 4) -> np.ndarray:
    """Frame i is filled with i."""
    return np.arange(n, dtype=np.uint8)[:, None, None, None] * np.ones((1, size, size, 3), np.uint8)


def test_every_third_frame_with_the_rewards_in_between_summed() -> None:
    """Steps 0..6 with rewards 1 2 4 8 16 32 64: frames 0, 3, 6 show 1+2+4, 8+16+32, 64 — none is lost."""
    strip = trajectories.strip("dream", frames(8), list("abcdefg"), [1, 2, 4, 8, 16, 32, 64], every=3)
    assert strip.steps == (0, 3, 6)
    assert strip.frames[:, 0, 0, 0].tolist() == [0, 3, 6]
    assert strip.actions == ("a", "d", "g")
    assert strip.rewards.tolist() == [7, 56, 64]


def test_a_last_frame_without_an_action_has_no_caption() -> None:
    strip = trajectories.strip("real", frames(4), list("abc"), [0, 1, 0])
    assert len(strip.frames) == 4
    assert strip.actions == ("a", "b", "c")
    assert strip.rewards.tolist() == [0, 1, 0]


def test_a_long_dream_of_230_steps_shows_47_frames() -> None:
    strip = trajectories.strip("dream", frames(231), ["up"] * 230, np.ones(230), every=5)
    assert len(strip.frames) == 47
    assert strip.rewards.tolist() == [5] * 46
    assert strip.steps[-1] == 230


@pytest.mark.parametrize(("actions", "rewards"), [(list("ab"), [0, 0, 0]), (list("abcde"), [0] * 5), (["a"], [0])])
def test_actions_and_rewards_must_fit_the_frames(actions: list[str], rewards: list[float]) -> None:
    with pytest.raises(ConfigError, match="a strip of 4 frames needs an action and a reward for each"):
        trajectories.strip("real", frames(4), actions, rewards)


def test_every_0th_frame_is_refused() -> None:
    with pytest.raises(ConfigError, match="n at least 1, got 0"):
        trajectories.strip("real", frames(2), ["a"], [0], every=0)


def test_a_moving_picture_shows_the_strips_side_by_side(tmp_path: Path) -> None:
    """As many pictures as the shorter strip has frames; left and right of the gap lie the frames, enlarged."""
    left = trajectories.strip("real", frames(5) * 50, ["up"] * 4, np.ones(4))
    right = trajectories.strip("dream", 255 - frames(4) * 50, ["up"] * 3, np.zeros(3))
    path = trajectories.save_film([left, right], tmp_path / "new" / "film.gif", side=16)
    with Image.open(path) as film:
        assert film.n_frames == 4
        film.seek(3)
        picture = np.asarray(film.convert("RGB"))
    assert picture.shape == (20 + 16, 16 + 8 + 16, 3)
    assert abs(int(picture[25, 8, 0]) - 150) < 8
    assert abs(int(picture[25, 30, 0]) - 105) < 8


def test_rows_of_a_film() -> None:
    """47 frames at 16 a row take three rows, a second strip of 5 one more; each row is an axes with its frames."""
    long = trajectories.strip("long", frames(231), ["up"] * 230, np.ones(230), every=5)
    short = trajectories.strip("short", frames(5), ["up"] * 5, np.zeros(5), ending="over after\n5 steps")
    figure = trajectories.film_figure([long, short])
    assert [len(ax.images) for ax in figure.axes] == [16, 16, 15, 5]
    assert {text.get_text() for text in figure.texts} == {"long", "short"}
    written = [text.get_text() for text in figure.axes[-1].texts]
    assert written.count("up") == 5
    assert "over after\n5 steps" in written


@pytest.mark.parametrize(("count", "rows"), [(11, [11]), (12, [12, 0]), (13, [12, 1])])
def test_an_ending_has_a_place_of_its_own(count: int, rows: list[int]) -> None:
    """Behind the last frame; where that fills its row, at the beginning of the next."""
    strip = trajectories.strip("dream", frames(count), ["up"] * count, np.zeros(count), ending="over")
    axes = trajectories.film_figure([strip], columns=12).axes
    assert [len(ax.images) for ax in axes] == rows
    assert [text.get_text() for text in axes[-1].texts].count("over") == 1


def test_only_rewards_that_stand_out_are_bold() -> None:
    strip = trajectories.strip("dream", frames(4), list("abc"), [0.01, 1.0, -0.8])
    texts = trajectories.film_figure([strip]).axes[0].texts
    weights = {text.get_text(): text.get_weight() for text in texts}
    assert (weights["+0.01"], weights["+1"], weights["-0.8"]) == ("normal", "bold", "bold")


def test_no_strips_still_give_a_figure() -> None:
    assert "no film strips" in trajectories.film_figure([]).texts[0].get_text()


def test_pictures_are_the_newest_frames() -> None:
    """Gray: the last of the stacked channels, three times. RGB: the last three."""
    gray = image_spec(size=8, channels=1, stack=2)
    o = np.zeros((1, 2, 8, 8), np.uint8)
    o[0, 1] = 200
    assert trajectories.pictures(o, gray).shape == (1, 8, 8, 3)
    assert (trajectories.pictures(o, gray) == 200).all()
    rgb = image_spec(size=8, channels=3, stack=2)
    o = np.arange(6, dtype=np.uint8)[None, :, None, None] * np.ones((1, 1, 8, 8), np.uint8)
    assert trajectories.pictures(o, rgb)[0, 0, 0].tolist() == [3, 4, 5]
    with pytest.raises(ConfigError, match="Numbers shows numbers, not pictures"):
        trajectories.pictures(np.zeros((1, 6), np.float32), vector_spec())


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NOOP", "–"),
        ("FIRE", "fire"),
        ("UPRIGHTFIRE", "↗ fire"),
        ("DOWNLEFT", "↙"),
        ("LEFT", "←"),
        ("STAY", "Stay"),
        ("push cart left", "push cart left"),
    ],
)
def test_short_names_of_actions(name: str, short: str) -> None:
    assert trajectories.short_action(name) == short


@pytest.mark.parametrize(
    ("reward", "text"),
    [(0.0, "0"), (0.004, "0"), (-0.004, "0"), (1.0, "+1"), (-0.374, "-0.37"), (399.6, "+400")],
)
def test_rewards_in_a_few_letters(reward: float, text: str) -> None:
    assert trajectories.reward_text(reward) == text


def test_a_stack_that_stands_still_is_gray_and_what_moves_is_coloured() -> None:
    """A dot on row k of frame k, on a background of 100: the background stays gray (at three quarters), each dot has
    exactly its frame's colour."""
    stack = np.full((4, 6, 6), 100, np.uint8)
    for k in range(4):
        stack[k, k, 2] = 255
    picture = trajectories.colour_stack(stack)
    assert picture[5, 5].tolist() == [75, 75, 75]
    for k, colour in enumerate(trajectories.STACK_COLOURS):
        assert picture[k, 2].tolist() == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def test_a_stack_of_five_has_no_colours() -> None:
    with pytest.raises(ConfigError, match="up to 4 frames have colours, got one of 5"):
        trajectories.colour_stack(np.zeros((5, 4, 4), np.uint8))


def test_gray_stacks_average_the_colours() -> None:
    o = np.zeros((1, 6, 8, 8), np.uint8)
    o[0, 3:] = np.array([30, 60, 90], np.uint8)[:, None, None]
    stacks = trajectories.gray_stacks(o, image_spec(size=8, channels=3, stack=2))
    assert stacks.shape == (1, 2, 8, 8)
    assert stacks[0, :, 0, 0].tolist() == [0, 60]


def test_stacks_figure_has_a_panel_for_each_stack_and_explains_the_colours() -> None:
    stacks = np.zeros((3, 2, 8, 8), np.uint8)
    figure = trajectories.stacks_figure({"real": stacks, "dream": stacks}, ["step 1", "step 2", "step 3"])
    assert len(figure.axes) == 6
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["does not move", "1 before", "newest frame"]
