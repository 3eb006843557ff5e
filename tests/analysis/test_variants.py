"""Runs by method: grouped by what changes learning, named by what differs, paired by the paper's ablations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twm.analysis.runs import RunRecord, load_run
from twm.analysis.variants import ablated, at, group, pairs
from twm.config import Config, preset, with_options

WriteRun = Callable[..., Path]
Make = Callable[..., RunRecord]


@pytest.fixture
def make(write_run: WriteRun) -> Make:
    """A finished run of a preset with some options changed."""
    count = iter(range(100))

    def record(base: Config, episodes: Any = (1.0, 2.0), **options: Any) -> RunRecord:
        paths = {name.replace("__", "."): value for name, value in options.items()}
        return load_run(write_run(f"run-{next(count):02d}", with_options(base, paths), {}, episodes))

    return record


def test_game_seed_and_machine_do_not_make_a_variant(make: Make) -> None:
    tiny = preset("tiny")
    runs = [make(tiny, seed=0), make(tiny, seed=1, threads=2, device="cpu"), make(tiny, env="Pong", train__log_every=7)]
    (variant,), notes = group(runs)
    assert variant.label == "tiny preset"
    assert variant.envs == ("Catch", "Pong")
    assert variant.final_scores("Catch") == [1.5, 1.5]
    assert list(variant.normalised()) == ["Pong"]
    assert variant.changes() == ""
    assert notes == []


def test_labels_say_what_differs(make: Make) -> None:
    tiny = preset("tiny")
    runs = [
        make(tiny),
        make(tiny, seed=1),
        make(tiny, replay__temperature=float("inf")),
        make(tiny, world_model__layers=4),
        make(tiny, world_model__layers=4, policy__units=32, policy__layers=1),
        make(tiny, world_model__layers=4, policy__units=32, policy__layers=3),
    ]
    variants, _ = group(runs)
    assert [variant.label for variant in variants] == [
        "tiny preset",
        "tiny preset · uniform-sampling",
        "tiny preset · world_model.layers=4",
        "tiny preset · 3 options changed",
        "tiny preset · 3 options changed #2",
    ]
    assert variants[3].changes() == "policy.layers=1, policy.units=32, world_model.layers=4"


def test_twins_count_once_and_the_finished_one_stays(make: Make) -> None:
    tiny = preset("tiny")
    going, finished = make(tiny, episodes=None), make(tiny)
    (variant,), (note,) = group([going, finished])
    assert variant.runs == (finished,)
    assert note.startswith(f"{going.name}: left out, the same configuration, game and seed as {finished.name}")


def test_a_run_without_configuration_is_left_out_by_name(write_run: WriteRun) -> None:
    path = write_run("broken", preset("tiny"), {}, [1.0])
    (path / "config.json").unlink()
    variants, (note,) = group([load_run(path)])
    assert variants == []
    assert note.endswith("broken: left out, its configuration is missing or unreadable")


def test_pairs_on_shared_environments(make: Make) -> None:
    paper = Config()
    runs = [
        make(paper, env="Pong"),
        make(paper, env="Boxing"),
        make(paper, env="Pong", replay__temperature=float("inf")),
        make(paper, env="Krull", policy__input="zh"),
        make(paper, env="Pong", replay__temperature=float("inf"), policy__input="zh"),
        make(paper, env="Boxing", train__interactions=10_000),
        make(paper, env="Boxing", train__interactions=10_000, train__samples=1e8),
    ]
    variants, _ = group(runs)
    found = {(pair.ablation.name, pair.base.label, pair.ablated.label): pair.envs for pair in pairs(variants)}
    both = "paper preset · policy.input=zh, replay.temperature=inf"
    assert found == {
        ("uniform-sampling", "paper preset", "paper preset · uniform-sampling"): ("Pong",),
        ("policy-zh", "paper preset", "paper preset · policy-zh"): (),
        ("policy-zh", "paper preset · uniform-sampling", both): ("Pong",),
        ("uniform-sampling", "paper preset · policy-zh", both): (),
        ("budget-10K", "paper preset", "paper preset · budget-10K"): ("Boxing",),
    }
    assert ablated(variants) == {
        ("Pong", "paper preset · uniform-sampling"),
        ("Pong", both),
        ("Boxing", "paper preset · budget-10K"),
    }


def test_the_evaluation_at_a_count(write_run: WriteRun) -> None:
    run = load_run(write_run("run", preset("cpu"), {4_000: 1.0, 4_980: 2.0, 10_001: 3.0}))
    found = at(run, 5_000)
    assert found is not None
    assert found.mean == 2.0
    assert at(run, 10_000) is None
