"""What the transformer looks at: attention rollout, adapted to causal masks (paper, figure "attention map").

Rollout (Abnar and Zuidema 2020) follows attention down through the layers. With A_l the attention weights of layer l,
averaged over its heads, and half of the flow going through the residual connection,

    R_0 = I,    R_l = ½ (A_l + I) R_{l-1},

R_l(i, j) says how much of token i after layer l comes from input token j. Masked weights are 0 and each row of A_l sums
to 1, so R_l is lower triangular with rows that sum to 1, too.

Under a causal mask that is not the whole story. Flow goes back in time only, so the early tokens collect it, however
little anyone cares for them: with attention that is *indifferent*, spread evenly over what the mask allows, the
rollout U_l already favours the past. The adapted map takes this out. What comes from other tokens is shared among them
in proportion to ρ_l(i, j) = R_l(i, j) / U_l(i, j), and what a token keeps of itself stays as it is:

    R'_l(i, i) = R_l(i, i),    R'_l(i, j) = (1 - R_l(i, i)) ρ_l(i, j) / Σ_{j' ≠ i} ρ_l(i, j')    for j ≠ i.

It is flat over the past for indifferent attention at every layer, 0 where the mask forbids, and its rows sum to 1. Only
the row of the newest token is of interest: it becomes h, from which everything is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from twm.analysis import style
from twm.analysis.tables import Row
from twm.analysis.trajectories import notable, reward_text
from twm.config import ConfigError
from twm.world_model.dynamics import DynamicsModel

Numbers = npt.NDArray[np.float64]


def rollout(weights: Sequence[Tensor], residual: float = 0.5) -> Tensor:
    """(B, L, N) rows of R_1 … R_L for the newest of N tokens.

    ``weights`` holds (B, heads, N, N) of each layer, or fewer rows, ending with the newest token's, in the last one.
    """
    N = weights[0].shape[-1]
    R = torch.eye(N, dtype=torch.float64, device=weights[0].device).expand(weights[0].shape[0], N, N)
    rows = []
    for layer, each in enumerate(weights, start=1):
        A = each.double().mean(1)  # (B, S, N)
        if A.shape[1] < N:
            if layer < len(weights):
                raise ConfigError(f"only the last layer may lack rows, but layer {layer} has {A.shape[1]} of {N}")
            rows.append(((1 - residual) * A[:, -1:] @ R)[:, 0] + residual * R[:, -1])
        else:
            R = (1 - residual) * A @ R + residual * R
            rows.append(R[:, -1])
    return torch.stack(rows, 1)


def adapted_rollout(weights: Sequence[Tensor], allowed: Tensor, residual: float = 0.5) -> Tensor:
    """(B, L, N) R' of the newest token: :func:`rollout` relative to indifferent attention under the mask ``allowed``
    (B, N, N)."""
    even = allowed.double() / allowed.sum(-1, keepdim=True)  # (B, N, N)
    indifferent = rollout([even[:, None, -each.shape[2] :] for each in weights], residual)
    plain = rollout(weights, residual)
    reached = indifferent > 0
    relative = torch.where(reached, plain / torch.where(reached, indifferent, 1.0), 0.0)[..., :-1]
    own = plain[..., -1:]
    total = relative.sum(-1, keepdim=True)
    others = (1 - own) * relative / torch.where(total > 0, total, 1.0)  # a first token has nothing but itself
    return torch.cat([others, own], -1)


@torch.no_grad()
def attention_rows(dynamics: DynamicsModel, z: Tensor, a: Tensor, r: Tensor, *, adapted: bool = True) -> Tensor:
    """(B, L, N) rollout for the last step of sequences z (B, T, Z), a, r (B, T) of one episode each; N tokens.

    Rewards are on the model's scale. The last one has not come yet when h is computed, and is not looked at.
    """
    weights: list[Tensor] = []
    B, T = a.shape
    one_episode = torch.zeros((B, T), dtype=torch.long, device=z.device)
    dynamics(z, a, r, one_episode, weights=weights)
    step = torch.arange(T, device=z.device).repeat_interleave(dynamics.tokens_per_step)[: weights[0].shape[-1]]
    label = torch.zeros((B, len(step)), dtype=torch.long, device=z.device)
    allowed = dynamics.allowed(label, step, label, step)
    return adapted_rollout(weights, allowed) if adapted else rollout(weights)


# --------------------------------------------------------------------------------------------------
# By what the tokens are


@dataclass(frozen=True)
class AttentionMap:
    """Rollout of the newest token: {modality: (L, T)}, layer 1 first, the current step last. NaN: no such token."""

    parts: Mapping[str, Numbers]
    rewards: Numbers | None = None  # (T,) to be written above their columns; NaN: not known yet

    @property
    def shape(self) -> tuple[int, int]:
        layers, steps = next(iter(self.parts.values())).shape
        return layers, steps


def by_modality(rows: npt.ArrayLike, tokens_per_step: int, rewards: npt.ArrayLike | None = None) -> AttentionMap:
    """Sort the columns of (L, N) by what the tokens are: states, actions and rewards, each over time.

    Three tokens a step: z_0 a_0 r_0 … z_T a_T, the last reward missing. Two: no rewards among the inputs. One: all
    three merged.
    """
    map_ = np.asarray(rows, np.float64)
    if tokens_per_step == 1:
        parts = {"steps": map_}
    else:
        steps = -(-map_.shape[1] // tokens_per_step)
        padded = np.full((len(map_), steps * tokens_per_step), np.nan)
        padded[:, : map_.shape[1]] = map_
        names = ("states", "actions", "rewards")[:tokens_per_step]
        parts = {name: padded[:, i::tokens_per_step] for i, name in enumerate(names)}
    known = None if rewards is None else np.append(np.asarray(rewards, np.float64)[:-1], np.nan)
    return AttentionMap(parts, known)


def map_table(maps: Mapping[str, AttentionMap]) -> list[Row]:
    """The maps' numbers, one row each."""
    return [
        {"Sequence": source, "Layer": layer + 1, "Tokens": name, "Step": t - map_.shape[1] + 1, "Weight": float(weight)}
        for source, map_ in maps.items()
        for name, part in map_.parts.items()
        for (layer, t), weight in np.ndenumerate(part)
        if not np.isnan(weight)
    ]


# --------------------------------------------------------------------------------------------------
# Drawing


def attention_figure(maps: Mapping[str, AttentionMap]) -> Figure:
    """One column of panels per sequence ("imagined", "real"), one row per modality: layers over time."""
    if not maps:
        return style.message("no sequences to look at")
    names = list(next(iter(maps.values())).parts)
    layers, steps = next(iter(maps.values())).shape
    panel = max(0.8 + 0.2 * layers, 2.2 / len(names))
    figure = style.new_figure(1.2 + len(maps) * max(3.2, 0.34 * steps), (panel + 0.12) * len(names) + 0.75)
    axes = figure.subplots(len(names), len(maps), squeeze=False, sharex=True)
    top = max(float(np.nanmax(part)) for map_ in maps.values() for part in map_.parts.values())
    least = notable(map_.rewards for map_ in maps.values() if map_.rewards is not None)
    norm = PowerNorm(0.5, 0, top)  # the few large weights would hide all others
    for column, (source, map_) in enumerate(maps.items()):
        for ax, name in zip(axes[:, column], names, strict=True):
            image = _draw(ax, map_.parts[name], norm)
            shows_rewards = name == names[-1] and map_.rewards is not None
            if shows_rewards:
                _write_rewards(ax, map_, least)
            if column == 0:
                ax.set_ylabel(f"{name}\nlayer" if name != "steps" else "merged tokens\nlayer")
            if ax is axes[0, column]:
                ax.set_title(source, fontsize=11, pad=16 if shows_rewards else 6)
        axes[-1, column].set_xlabel("steps before the current one")
    figure.colorbar(image, ax=axes, label="share of attention", shrink=0.9, pad=0.01)
    return figure


def _draw(ax: Axes, part: Numbers, norm: PowerNorm) -> AxesImage:
    layers, steps = part.shape
    ax.set_facecolor("#D9D9D9")  # a token that does not exist yet
    image = ax.imshow(part, origin="lower", aspect="auto", cmap="cividis", norm=norm, interpolation="nearest")
    shown = np.arange(steps - 1, -1, -2 if steps <= 20 else -4)[::-1]
    ax.set_xticks(shown, [str(steps - 1 - t) for t in shown])
    every = 1 if layers <= 4 else 2 if layers <= 8 else 3
    ax.set_yticks(range(0, layers, every), [str(layer + 1) for layer in range(0, layers, every)])
    ax.tick_params(length=2, labelsize=8)
    ax.spines[:].set_visible(False)
    return image


def _write_rewards(ax: Axes, map_: AttentionMap, least: float) -> None:
    """Rewards of at least ``least`` above the columns of their steps."""
    if map_.rewards is None:
        return
    for t, r in enumerate(map_.rewards):
        if not np.isnan(r) and abs(r) >= least:
            ax.text(
                t,
                map_.shape[0] - 0.4,
                reward_text(float(r)),
                ha="center",
                va="bottom",
                fontsize=7,
                clip_on=False,
            )
