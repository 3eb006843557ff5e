"""Published results on the Atari 100k benchmark, as data: the paper's tables and the aggregates of its peers.

The numbers live in ``twm/lab/data`` (CSV and JSON, typeset values untouched), so that a table of ours can
stand beside theirs and a reader can check every figure. Scores are normalised as in the paper's section 3.1:

    normalise(game, score) = (score - random) / (human - random)
"""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

from twm.config import ConfigError

REFERENCES = ("Random", "Human")
"""The two ends of the normalised scale."""
METHODS = ("DER", "CURL", "DrQ(ε)", "SPR", "SimPLe", "TWM")
"""Methods of the paper's result table, in its order."""
CHECKPOINTS = (5_000, 10_000, 25_000, 50_000, 75_000, 100_000)
"""Interactions at which the paper gives its own scores (table of sample efficiency)."""


@dataclass(frozen=True)
class Runtime:
    """One line of the paper's wall-clock figures; a range where the paper gives one."""

    method: str
    hours: tuple[float, float]
    machine: str
    model_based: bool
    in_table: bool  # False: given in the running text only


@dataclass(frozen=True)
class Throughput:
    """What the paper measured of one part; ``part`` is the name that ``twm bench`` uses."""

    part: str
    title: str
    per_second: float
    unit: str
    machine: str


@dataclass(frozen=True)
class Peer:
    """Aggregates of a method over the 26 games; None where no figure was published."""

    method: str
    mean: float | None
    median: float | None
    iqm: float | None
    note: str


def _text(name: str) -> str:
    return resources.files("twm.lab").joinpath("data", name).read_text(encoding="utf-8")


@functools.cache
def _table(name: str) -> Mapping[str, Mapping[str, float]]:
    """A CSV of the package as {column: {game: value}}."""
    columns: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO(_text(name))):
        game = row.pop("Game")
        for column, value in row.items():
            columns.setdefault(column, {})[game] = float(value)
    return MappingProxyType({column: MappingProxyType(scores) for column, scores in columns.items()})


@functools.cache
def _facts() -> Mapping[str, Any]:
    facts: dict[str, Any] = json.loads(_text("published.json"))
    return MappingProxyType(facts)


GAMES: tuple[str, ...] = tuple(_table("results.csv")["Random"])
"""The 26 games of the benchmark, in the paper's (alphabetical) order."""


def published(method: str) -> dict[str, float]:
    """Mean score of each game as the paper's result table prints it; ``method`` from METHODS or REFERENCES."""
    table = _table("results.csv")
    if method not in table:
        raise ConfigError(f"no published scores of {method!r}: expected one of {', '.join(table)}")
    return dict(table[method])


def published_at(interactions: int) -> dict[str, float]:
    """TWM's mean score of each game after so many interactions (table of sample efficiency)."""
    if interactions not in CHECKPOINTS:
        choices = ", ".join(f"{checkpoint:,}" for checkpoint in CHECKPOINTS)
        raise ConfigError(f"the paper gives no scores after {interactions:,} interactions: expected one of {choices}")
    return dict(_table("sample_efficiency.csv")[str(interactions)])


def normalise(game: str, score: float) -> float:
    """Human-normalised score: 0 is the random policy, 1 a human player; unbounded on both sides."""
    table = _table("results.csv")
    if game not in table["Random"]:
        raise ConfigError(
            f"no random and human scores of {game!r}, so its score cannot be normalised: "
            f"expected one of the {len(GAMES)} Atari 100k games ({', '.join(GAMES)})"
        )
    random, human = table["Random"][game], table["Human"][game]
    return (score - random) / (human - random)


def published_aggregates() -> dict[str, dict[str, float]]:
    """Normalised mean and median as the paper prints them: {method: {"mean": ..., "median": ...}}."""
    return {method: dict(values) for method, values in _facts()["aggregates"]["normalised"].items()}


def published_means_at() -> dict[int, float]:
    """TWM's normalised mean at each checkpoint as the paper prints it."""
    return {int(count): value for count, value in _facts()["sample_efficiency"]["normalised_mean"].items()}


def wall_clock() -> tuple[Runtime, ...]:
    """Hours per run: the paper's table (P100), then what its text adds (A100, RTX 3090)."""
    facts = _facts()["wall_clock"]
    return tuple(
        Runtime(
            method=row["method"],
            hours=(float(row["hours"][0]), float(row["hours"][-1]))
            if isinstance(row["hours"], list)
            else (float(row["hours"]), float(row["hours"])),
            machine=row["machine"],
            model_based=row["model_based"],
            in_table=in_table,
        )
        for rows, in_table in ((facts["rows"], True), (facts["text"], False))
        for row in rows
    )


def throughput() -> tuple[Throughput, ...]:
    """The paper's throughput figures (A100; acting on a CPU)."""
    return tuple(Throughput(**row) for row in _facts()["throughput"]["rows"])


def parameters_in_millions() -> dict[str, float]:
    """The paper's parameter table, in millions, rounded as printed."""
    return {name: float(value) for name, value in _facts()["parameters"]["millions"].items()}


def peers() -> tuple[Peer, ...]:
    """Aggregates over the 26 games of methods before and after TWM, each with where the figure comes from."""
    return tuple(Peer(**row) for row in _facts()["peers"]["rows"])


def source(topic: str) -> str:
    """Where the figures of a topic (aggregates, throughput, peers, ...) were read."""
    facts = _facts()
    if topic not in facts:
        raise ConfigError(f"no published figures about {topic!r}: expected one of {', '.join(facts)}")
    text: str = facts[topic]["source"]
    return text
