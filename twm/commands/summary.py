"""Results as a few lines to read at the end of a command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twm.commands import COMMANDS


def run_text(result: Mapping[str, Any], run: Path) -> str:
    """The score of a finished run, and where to look next."""
    lines = [score_text(result)] if "mean" in result else []
    if "held_out" in result:  # trained on recorded episodes: there is no score
        lines.append(f"loss    {result['held_out']['total']:.4g} on {result['held_out_steps']:,} held-out steps")
    lines.append(f"run     {run}")
    if "held_out" in result:
        lines.append(f"next    twm eval {run} --world-model   (how far its dreams stay right)")
    for command, what in (("report", "figures and tables"), ("studio", "play inside the dream, in a browser")):
        if command in COMMANDS:
            lines.append(f"next    twm {command} {run}   ({what})")
    return "\n".join(lines)


def score_text(result: Mapping[str, Any]) -> str:
    """An evaluation beside what it should be compared with: chance, and the best possible where that is known."""
    count = len(result["episodes"])
    lines = [f"score   {_number(result['mean'])}{_interval(result)}, mean of {count} episode{'s' * (count != 1)}"]
    if result.get("random_mean") is not None:
        lines.append(f"random  {_number(result['random_mean'])}, the random policy in the same environment")
    if result.get("optimal_return") is not None:
        lines.append(f"best    {_number(result['optimal_return'])}, the best possible mean")
    return "\n".join(lines)


def _interval(result: Mapping[str, Any]) -> str:
    """The 95 % interval of the mean; a single episode has none."""
    low, high = result.get("low"), result.get("high")
    return f" [{_number(low)}, {_number(high)}]" if low is not None and high is not None and low == low else ""


def _number(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"


def quality_text(quality: Mapping[str, Any]) -> str:
    """Dreams against copying the last frame, by who played the episodes (twm/analysis/quality.py)."""
    blocks = []
    for source, player in (("policy", "the agent"), ("random", "random play"), ("held_out", "held-out episodes")):
        if source not in quality:
            continue
        part = quality[source]
        rows = [["horizon", "dream", "copy", "reward corr.", "return corr."]]
        for horizon, values in part["horizons"].items():
            keys = ("mse", "mse_copy", "reward_correlation", "return_correlation")
            rows.append([str(horizon), *(_or_dash(values[key]) for key in keys)])
        ends = part["ends"]
        blocks.append(
            f"{part['steps']:,} fresh steps of {player}: mean squared error of the newest frame\n"
            + "\n".join("  ".join(f"{cell:>12}" for cell in row) for row in rows)
            + f"\nepisode ends: {ends['happened']} happened, {ends['predicted']} predicted, "
            f"precision {_or_dash(ends['precision'])}, recall {_or_dash(ends['recall'])}"
        )
    return "\n\n".join(blocks)


def _or_dash(value: float | None) -> str:
    """Nothing to measure is shown as such."""
    return "-" if value is None else f"{value:.3g}"
