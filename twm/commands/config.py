"""``twm config``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import arg

from twm.commands import Output
from twm.commands.options import ConfigOptions, starting_point
from twm.config import to_dict, validate


@dataclass(frozen=True)
class ShowConfig:
    """Print the configuration that training would use, as --config reads it back."""

    source: Annotated[ConfigOptions, arg(name="")] = field(default_factory=ConfigOptions)
    parameters: bool = False
    """Print how many parameters each network has instead."""
    json: bool = False
    """Print one JSON object (the configuration is one anyway); everything else goes to standard error."""

    @classmethod
    def defaults(cls, args: Sequence[str]) -> ShowConfig:
        return cls(source=starting_point(args))

    def __call__(self) -> Output:
        self.source.announce()
        if not self.parameters:
            validate(self.source.options)
            values = to_dict(self.source.options)
            return Output(values, json.dumps(values, indent=2))

        from twm.agent import parameter_counts

        counts = parameter_counts(*self.source.checked())
        return Output(counts, parameter_table(counts))


def parameter_table(counts: Mapping[str, int]) -> str:
    """The paper's table of model sizes, with its sums."""
    world_model = counts["observation"] + counts["dynamics"]
    actor_critic = counts["actor"] + counts["critic"]
    rows = {
        "observation model": counts["observation"],
        "dynamics model": counts["dynamics"],
        "world model": world_model,
        "actor": counts["actor"],
        "critic": counts["critic"],
        "actor-critic": actor_critic,
        "total": world_model + actor_critic,
    }
    return "\n".join(f"{name:<18} {number:>12,}" for name, number in rows.items())
