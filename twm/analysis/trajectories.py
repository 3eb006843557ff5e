"""Film strips of dreams (paper, figures "trajectories", "stochasticity", "long sequence" and "frame stacking").

Above each frame stand the action taken on it and the reward that followed, as in the paper. Where a strip shows only
every n-th frame, the action is that of the frame shown and the rewards up to the next frame shown are summed, so that
none is lost. Everything here is a pure function of data; :mod:`twm.analysis.dreaming` makes the dreams.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image, ImageDraw

from twm.analysis import style
from twm.config import ConfigError
from twm.types import EnvSpec, FrameArray

Pictures = npt.NDArray[np.uint8]

STACK_COLOURS = ("#0072B2", "#56B4E9", "#E69F00", "#D55E00")
"""Oldest to newest frame of a stack: from cold to warm."""

_GAP = 0.09  # between frames, in frame widths
_CAPTION = 0.4  # room above a frame for action and reward, in frame heights


@dataclass(frozen=True)
class Strip:
    """A row of frames with their captions. A final frame without an action has none: ``actions`` is then shorter."""

    label: str
    frames: Pictures  # (n, height, width, 3)
    actions: tuple[str, ...]  # (n) or (n - 1)
    rewards: npt.NDArray[np.float64]  # as many
    steps: tuple[int, ...]  # (n) which step each frame is
    ending: str = ""  # written behind the last frame

    @property
    def places(self) -> int:
        """Frames, and one more for the ending."""
        return len(self.frames) + bool(self.ending)


def strip(
    label: str,
    frames: Pictures,
    actions: Sequence[str],
    rewards: npt.ArrayLike,
    *,
    every: int = 1,
    ending: str = "",
) -> Strip:
    """Every n-th of the frames (n, height, width, 3), and with each the sum of the rewards until the next one shown."""
    r = np.asarray(rewards, np.float64)
    if len(r) != len(actions) or not len(frames) - 1 <= len(r) <= len(frames):
        raise ConfigError(
            f"a strip of {len(frames)} frames needs an action and a reward for each (the last may lack them), "
            f"got {len(actions)} and {len(r)}"
        )
    if every < 1:
        raise ConfigError(f"a strip shows every n-th frame with n at least 1, got {every}")
    shown = range(0, len(frames), every)
    sums = np.array([r[i : i + every].sum() for i in shown if i < len(r)])
    names = tuple(actions[i] for i in shown if i < len(r))
    return Strip(label, frames[::every], names, sums, tuple(shown), ending)


def relabel(strip: Strip, label: str) -> Strip:
    """The same strip under another name."""
    return replace(strip, label=label)


def save_film(strips: Sequence[Strip], path: Path, *, side: int = 256, frames_per_second: int = 8) -> Path:
    """The strips side by side as a moving picture (GIF), each with its label and the rewards so far above it.

    Frames are enlarged to about ``side`` pixels.
    """
    caption, gap = 20, 8
    scale = max(side // strips[0].frames.shape[2], 1)
    height, width = (scale * n for n in strips[0].frames.shape[1:3])
    images = []
    for i in range(min(len(each.frames) for each in strips)):
        image = Image.new("RGB", (len(strips) * (width + gap) - gap, caption + height), "white")
        draw = ImageDraw.Draw(image)
        for column, each in enumerate(strips):
            x = column * (width + gap)
            draw.text((x + 4, 4), f"{each.label}   rewards {reward_text(float(each.rewards[:i].sum()))}", "black")
            image.paste(Image.fromarray(each.frames[i]).resize((width, height), Image.Resampling.NEAREST), (x, caption))
        images.append(image.quantize(64))
    path.parent.mkdir(parents=True, exist_ok=True)
    images[0].save(
        path, save_all=True, append_images=images[1:], duration=1000 // frames_per_second, loop=0, optimize=True
    )
    return path


def pictures(o: FrameArray, spec: EnvSpec) -> Pictures:
    """(n, height, width, 3) newest frames of raw observations (n, C, height, width), for people to look at."""
    if not spec.is_image:
        raise ConfigError(f"{spec.name} shows numbers, not pictures: there is no film strip of it")
    channels = spec.frame_shape[0]
    newest = np.asarray(o[:, -channels:], np.uint8).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(newest if channels == 3 else newest[..., :1].repeat(3, axis=-1))


def short_action(name: str) -> str:
    """An action's name as it fits above a frame: UPRIGHTFIRE becomes ↗ fire, NOOP a dash."""
    if name == "NOOP":
        return "–"
    match = re.fullmatch(r"(UP|DOWN)?(LEFT|RIGHT)?(FIRE)?", name)
    if match is None or not name:
        return name.capitalize() if name.isupper() else name
    arrows = {
        ("UP", None): "↑",
        ("DOWN", None): "↓",
        (None, "LEFT"): "←",
        (None, "RIGHT"): "→",
        ("UP", "LEFT"): "↖",
        ("UP", "RIGHT"): "↗",
        ("DOWN", "LEFT"): "↙",
        ("DOWN", "RIGHT"): "↘",
    }
    arrow = arrows.get((match[1], match[2]), "")
    return " ".join(part for part in (arrow, "fire" if match[3] else "") if part)


def reward_text(r: float) -> str:
    """Two digits behind the point at most: +1, -0.37, 0, +400."""
    rounded = round(r, 2) if abs(r) < 10 else round(r)
    return f"{rounded:+g}" if rounded else "0"


def notable(rewards: Iterable[npt.NDArray[np.float64]]) -> float:
    """How large a reward must be to stand out among these: a twentieth of the largest, and at least 0.1, because
    predictions are never exactly 0."""
    largest = max((float(np.nanmax(np.abs(r))) for r in rewards if np.isfinite(r).any()), default=0.0)
    return max(largest / 20, 0.1)


# --------------------------------------------------------------------------------------------------
# Drawing


def film_figure(strips: Sequence[Strip], *, columns: int = 16, width: float = 12.5) -> Figure:
    """Strips below each other, each going on in further rows where it has more frames than ``columns``."""
    if not strips:
        return style.message("no film strips to draw")
    columns = min(columns, max(10, *(s.places for s in strips)))
    rows = [(s, first) for s in strips for first in range(0, s.places, columns)]
    height, breadth = strips[0].frames.shape[1:3]
    label_width = 0.75
    cell = (width - label_width) / (columns * (1 + _GAP))  # inches of a frame's width
    row_height = cell * (height / breadth) * (1 + _CAPTION) + 0.06
    figure = Figure(figsize=(width, row_height * len(rows) + 0.1), dpi=120)
    least = notable(each.rewards for each in strips)
    for index, (each, first) in enumerate(rows):
        bottom = 1 - (index + 1) * row_height / figure.get_figheight()
        share = row_height / figure.get_figheight()
        ax = figure.add_axes((label_width / width, bottom, 1 - label_width / width, share * 0.97))
        _draw_row(ax, each, first, columns, min(8.5, 10.5 * cell), least)
        if first == 0:
            y = bottom + share * 0.97 / (1 + _CAPTION) / 2
            figure.text(0.06 / width, y, each.label, va="center", fontsize=9, fontweight="bold", wrap=True)
    return figure


def _draw_row(ax: Axes, strip: Strip, first: int, columns: int, font: float, least: float) -> None:
    """Frames first … first + columns - 1, one unit of width each; the y axis points down, frames end at 1.
    Rewards of at least ``least`` stand out."""
    ax.set_xlim(0, columns * (1 + _GAP))
    ax.set_ylim(1, -_CAPTION)
    ax.set_axis_off()
    last = min(first + columns, len(strip.frames))
    for i in range(first, last):
        x = (i - first) * (1 + _GAP)
        ax.imshow(strip.frames[i], extent=(x, x + 1, 1, 0), aspect="auto", interpolation="nearest")
        if i < len(strip.actions):
            r = float(strip.rewards[i])
            faint = abs(r) < least
            colour = style.GRAY if faint else "#00694D" if r > 0 else "#B34700"
            ax.text(x + 0.5, -0.19, strip.actions[i], ha="center", va="bottom", fontsize=font)
            weight = "normal" if faint else "bold"
            ax.text(
                x + 0.5, -0.03, reward_text(r), ha="center", va="bottom", fontsize=font, color=colour, weight=weight
            )
        ax.text(x + 0.03, 0.97, str(strip.steps[i]), color="white", fontsize=font * 0.75, va="bottom", bbox=_STEP_BOX)
    ax.set_xlim(0, columns * (1 + _GAP))  # imshow has changed them
    ax.set_ylim(1, -_CAPTION)
    if strip.ending and first <= len(strip.frames) < first + columns:
        ax.text((last - first) * (1 + _GAP), 0.5, strip.ending, va="center", fontsize=9, color=style.GRAY)


_STEP_BOX = {"facecolor": "black", "alpha": 0.55, "edgecolor": "none", "pad": 0.8}


# --------------------------------------------------------------------------------------------------
# Frame stacks


def colour_stack(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """(height, width, 3) of a stack (n, height, width) of gray frames, oldest first.

    What stands still is gray, what moves has the colour of the frame it is seen in. The still picture is the median
    over the stack; frame k is laid over it in its colour with opacity |frame k - median|, opaque from half of the
    largest such difference on (at least 0.15 of the range of gray, so that noise stays faint), the newest on top.
    """
    n = len(frames)
    if n > len(STACK_COLOURS):
        raise ConfigError(f"stacks of up to {len(STACK_COLOURS)} frames have colours, got one of {n}")
    values = frames.astype(np.float64) / 255
    still = np.median(values, axis=0)
    picture = np.repeat((0.75 * still)[..., None], 3, axis=-1)
    opaque = max(0.15, float(np.abs(values - still).max()) / 2)
    for frame, colour in zip(values, STACK_COLOURS[-n:], strict=True):
        rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        opacity = np.clip(np.abs(frame - still) / opaque, 0, 1)[..., None]
        picture = (1 - opacity) * picture + opacity * rgb
    return (picture * 255).round().astype(np.uint8)


def gray_stacks(o: FrameArray, spec: EnvSpec) -> npt.NDArray[np.uint8]:
    """(n, stack, height, width) of raw observations (n, C, height, width); colours are averaged."""
    channels, height, width = spec.frame_shape
    frames = np.asarray(o, np.float64).reshape(len(o), spec.stack, channels, height, width).mean(axis=2)
    return frames.round().astype(np.uint8)


def stacks_figure(rows: dict[str, npt.NDArray[np.uint8]], titles: Sequence[str]) -> Figure:
    """Coloured stacks: {label: (n, stack, height, width)} below each other, n titles above, the colours explained."""
    n, depth = next(iter(rows.values())).shape[:2]
    figure = style.new_figure(1.0 + 2.1 * n, 2.25 * len(rows) + 0.55)
    axes = figure.subplots(len(rows), n, squeeze=False)
    for line, (label, stacks) in zip(axes, rows.items(), strict=True):
        for ax, stack in zip(line, stacks, strict=True):
            ax.imshow(colour_stack(stack), interpolation="nearest")
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_visible(False)
        line[0].set_ylabel(label, fontsize=10, fontweight="bold")
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title, fontsize=10)
    names = ["newest frame", *(f"{age} before" for age in range(1, depth))][::-1]
    patches = [Patch(color=colour, label=name) for colour, name in zip(STACK_COLOURS[-depth:], names, strict=True)]
    patches.insert(0, Patch(color="#9A9A9A", label="does not move"))
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False, fontsize=9)
    return figure
