"""Means of what the updates report, gathered without making a GPU wait, and the check that all is finite."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from twm.train.files import RunError


class TrainingDiverged(RunError):
    """A loss stopped being a number. The last checkpoint is from before."""


class Averages:
    """``add`` what an update reports; ``settle`` brings it to the host; ``take`` the means since the last time."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._pending: list[tuple[str, list[str], Tensor]] = []

    def add(self, where: str, facts: dict[str, Tensor]) -> None:
        """``where`` names the update in an error, e.g. "update 120"."""
        stacked = torch.stack([fact.float() for fact in facts.values()])
        self._pending.append((where, list(facts), stacked))
        if stacked.device.type == "cpu":
            self.settle()

    def add_number(self, key: str, value: float) -> None:
        self._sums[key] = self._sums.get(key, 0.0) + value
        self._counts[key] = self._counts.get(key, 0) + 1

    def settle(self) -> None:
        """Fetch what is pending; raises :class:`TrainingDiverged` that names every term that is not finite."""
        pending, self._pending = self._pending, []
        for where, names, stacked in pending:
            values = dict(zip(names, stacked.tolist(), strict=True))
            bad = [name for name, value in values.items() if not math.isfinite(value)]
            if bad:
                raise TrainingDiverged(
                    f"{', '.join(bad)} not finite at {where}: the run stopped, its last checkpoint is intact; "
                    "lower the learning rates or look at the data"
                )
            for name, value in values.items():
                self.add_number(name, value)

    def take(self) -> dict[str, float]:
        """The means, and begin anew."""
        means = {key: self._sums[key] / self._counts[key] for key in self._sums}
        self._sums, self._counts = {}, {}
        return means

    def glance(self) -> dict[str, float]:
        """The few that a person watches, without waiting for a device."""
        shown = {
            "decoder": "loss/decoder",
            "latent": "loss/latent",
            "reward": "loss/reward",
            "entropy": "policy/entropy",
        }
        return {name: self._sums[key] / self._counts[key] for name, key in shown.items() if key in self._sums}

    def state(self) -> dict[str, Any]:
        return {"sums": self._sums, "counts": self._counts}

    def load_state(self, state: dict[str, Any]) -> None:
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])
