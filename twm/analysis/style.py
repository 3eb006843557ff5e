"""One look for all figures: colours that colour-blind readers can tell apart, plain axes, no global state.

Figures are built on ``matplotlib.figure.Figure`` without pyplot, so they draw with Agg (no display needed) and
making one never changes another, in a notebook or in a server.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours without the yellow, which is too faint for lines on white."""
GRAY = "#6B6B6B"
"""What is not ours: published figures and reference lines."""
LINES = ("-", "--", "-.", ":")
"""Line styles, changed after each round through the palette, so that no two of 28 series look alike."""


def new_figure(width: float, height: float) -> Figure:
    """A figure in inches whose layout makes room for labels and legends."""
    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white")
    return path


def tidy(axes: Axes, *, grid: str = "y") -> None:
    """Two spines and a light grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#E3E3E3", linewidth=0.8)  # type: ignore[arg-type]  # "x", "y" or "both"
    axes.set_axisbelow(True)


def in_thousands(axes: Axes) -> None:
    """Ticks of the x axis as 5K, 10K; small counts as they are."""
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda count, _: f"{count / 1000:g}K" if count >= 1000 else f"{count:g}")
    )


def message(text: str) -> Figure:
    """A figure that says why there is nothing to draw."""
    figure = new_figure(7, 1.2)
    figure.text(0.5, 0.5, text, ha="center", va="center", wrap=True, color=GRAY)
    return figure
