"""World model quality (:mod:`twm.analysis.quality`) as a table and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from twm.analysis import style
from twm.analysis.tables import Row

SOURCES = {"policy": "episodes of the policy", "random": "episodes of the random policy"}
ERRORS = {
    "mse_copy": "copy of the last frame",
    "mse_drawn": "dream, drawn",
    "mse": "dream, most likely",
    "mse_reconstruction": "encoded and decoded",
}


def quality_table(quality: Mapping[str, Any]) -> list[Row]:
    """One row per source and horizon."""
    return [
        {"Episodes of": source, "Horizon": int(horizon), **values}
        for source in (*SOURCES, "both")
        if source in quality
        for horizon, values in quality[source]["horizons"].items()
    ]


def quality_figure(quality: Mapping[str, Any]) -> Figure:
    """Error over horizon for both kinds of episodes: what lies below the copy beats it."""
    present = {source: title for source, title in SOURCES.items() if source in quality}
    figure = style.new_figure(10.0, 4.0)
    panels = figure.subplots(1, len(present), sharey=True, squeeze=False)[0]
    for ax, (source, title) in zip(panels, present.items(), strict=True):
        for index, (key, label) in enumerate(ERRORS.items()):
            points = [
                (int(horizon), values[key] * 1e3)
                for horizon, values in quality[source]["horizons"].items()
                if values[key] is not None
            ]
            colour = style.GRAY if key == "mse_copy" else style.PALETTE[index - 1]
            line = dict(zip(("x", "y"), zip(*points, strict=True), strict=True)) if points else {"x": (), "y": ()}
            ax.plot(
                line["x"],
                line["y"],
                marker="osD^"[index],
                color=colour,
                linestyle=style.LINES[index],
                linewidth=1.8,
                markersize=5,
                label=label,
            )
        horizons = [int(horizon) for horizon in quality[source]["horizons"]]
        ax.set_xscale("log")
        ax.set_xticks(horizons, [str(k) for k in horizons])
        ax.minorticks_off()
        ax.set_xlim(min(horizons) * 0.85, max(horizons) * 1.2)
        ax.set_xlabel("steps dreamed")
        ax.set_title(title, fontsize=11)
        style.tidy(ax)
    panels[0].set_ylabel("mean squared error, thousandths")
    panels[0].set_ylim(bottom=0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, handlelength=3.5)
    return figure
