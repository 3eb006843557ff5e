"""What it costs: wall-clock time, throughput and parameters, ours beside the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from twm.analysis.runs import RunRecord
from twm.analysis.tables import Row
from twm.analysis.variants import Variant
from twm.lab import scores


def wall_clock_table(variants: Sequence[Variant]) -> list[Row]:
    """Hours per run as published, then the mean of our finished runs that recorded their time."""
    rows: list[Row] = [
        {
            "Method": runtime.method,
            "Machine": runtime.machine,
            "Hours": runtime.hours[0] if runtime.hours[0] == runtime.hours[1] else None,
            "Shortest": runtime.hours[0],
            "Longest": runtime.hours[1],
            "Source": "paper, table" if runtime.in_table else "paper, text",
        }
        for runtime in scores.wall_clock()
    ]
    for variant in variants:
        by_machine: dict[str, list[float]] = {}
        for run in variant.runs:
            if run.final is not None and run.seconds is not None:
                by_machine.setdefault(machine_name(run), []).append(run.seconds / 3600)
        for machine, hours in by_machine.items():
            rows.append(
                {
                    "Method": variant.label,
                    "Machine": machine,
                    "Hours": statistics.fmean(hours),
                    "Shortest": min(hours),
                    "Longest": max(hours),
                    "Runs": len(hours),
                    "Interactions": variant.interactions,
                    "Source": "our runs",
                }
            )
    return rows


def machine_name(run: RunRecord) -> str:
    """What a run ran on: the graphics card unless told to stay on the CPU; "not recorded" if unknown."""
    device = run.options.get("device")
    keys = ("cpu",) if device == "cpu" else ("gpu", "cpu")
    names = [name for key in keys if isinstance(name := run.machine.get(key), str) and name]
    return names[0] if names else "not recorded"


def throughput_table(benchmarks: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """One row per part: the paper's figure, then per_second and work units of each ``twm bench`` result."""
    published = {row.part: row for row in scores.throughput()}
    parts = [*published, *dict.fromkeys(part for bench in benchmarks.values() for part in bench["parts"])]
    rows: list[Row] = []
    for part in dict.fromkeys(parts):
        known = published.get(part)
        row: Row = {"Part": part, "What": known.title if known else None, "Unit": known.unit if known else None}
        row |= {
            "Published": known.per_second if known else None,
            "Published: machine": known.machine if known else None,
        }
        for name, bench in benchmarks.items():
            measured = bench["parts"].get(part)
            measured = measured if isinstance(measured, dict) else {}
            row |= {f"{name}: per second": _number(measured.get("per_second"))}
            row |= {
                f"{name}: seconds": _number(measured.get("seconds")),
                f"{name}: units": _number(measured.get("units")),
            }
        rows.append(row)
    return rows


def parameter_table(counts: Mapping[str, int]) -> list[Row]:
    """Parameters of each model: the paper's (rounded, in millions) and ours, sums where all summands are known."""
    ours = dict(counts)
    sums = {
        "world model": ("observation", "dynamics"),
        "actor-critic": ("actor", "critic"),
        "total": ("observation", "dynamics", "actor", "critic"),
        "encoder + actor": ("encoder", "actor"),
    }
    for name, parts in sums.items():
        if name not in ours and all(part in counts for part in parts):
            ours[name] = sum(counts[part] for part in parts)
    published = scores.parameters_in_millions()
    return [
        {"Model": name, "Published (millions)": published.get(name), "Ours": ours.get(name)}
        for name in dict.fromkeys([*published, *ours])
    ]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
