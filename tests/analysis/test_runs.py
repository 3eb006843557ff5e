"""Run directories: what is there is read, what is missing is named, nothing crashes and nothing is made up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from twm.analysis.runs import find_benchmarks, find_runs, load_run
from twm.config import Config, ConfigError, preset, with_options

WriteRun = Callable[..., Path]

CPU = with_options(preset("cpu"), {"env": "Krull", "seed": 3})
END = CPU.train.interactions


def test_a_whole_run(write_run: WriteRun) -> None:
    run = load_run(write_run("Krull-3", CPU, {5_000: 1700.0, END: 1.0}, [2000.0, 2400.0], random_mean=1600.0))
    assert (run.env, run.seed, run.state, run.interactions, run.target) == ("Krull", 3, "finished", END, END)
    assert run.final is not None
    assert run.final[:2] == (END, 2200.0)
    assert run.final.episodes == 2
    assert run.final.low == pytest.approx(2200 - 12.7062 * 200, rel=1e-5)  # t of one degree of freedom, s/√2 = 200
    assert [each[:2] for each in run.evaluations] == [(5_000, 1700.0), (END, 2200.0)]  # the final one replaces its twin
    assert (run.random_mean, run.optimal_return, run.seconds) == (1600.0, None, 7200.0)
    assert run.options["world_model.layers"] == CPU.world_model.layers
    assert run.notes == ()


def test_a_run_still_going(write_run: WriteRun) -> None:
    path = write_run("run", CPU, {5_000: 1700.0})
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"interactions": 6000, "loss/lat')  # caught in the middle of a line
    run = load_run(path)
    assert run.final is None
    assert run.state == f"unfinished: 5,000 of {END:,} interactions"
    assert run.seconds == 1.0
    assert run.notes == ("eval.json is missing",)


def test_an_evaluation_before_the_end_is_no_final_score(write_run: WriteRun) -> None:
    """For example a run that was resumed with more interactions."""
    run = load_run(write_run("run", CPU, {}, [2000.0, 2400.0], interactions=5_000))
    assert run.final is None
    assert run.evaluations[-1][:2] == (5_000, 2200.0)
    assert run.notes == (f"evaluated after 5,000 of {END:,} interactions: no final score",)


def test_infinity_and_options_unknown_to_older_runs(write_run: WriteRun) -> None:
    path = write_run("run", with_options(CPU, {"replay.temperature": math.inf}))
    config = json.loads((path / "config.json").read_text())
    del config["policy"]["slow_critic"]
    (path / "config.json").write_text(json.dumps(config))
    run = load_run(path)
    assert run.options["replay.temperature"] == math.inf
    assert run.options["policy.slow_critic"] == Config().policy.slow_critic


def test_damage_is_named(write_run: WriteRun) -> None:
    path = write_run("run", CPU, {5_000: 1.0}, [1.0])
    (path / "config.json").write_text("{")
    (path / "metrics.jsonl").write_text('no\n[1]\n{"interactions": true, "eval/score_mean": "7"}\n')
    (path / "eval.json").write_text('{"episodes": [1, null], "mean": NaN}')
    run = load_run(path)
    assert (run.env, run.seed, run.interactions, run.evaluations, run.final) == (None, None, None, (), None)
    assert run.notes[0].startswith("config.json cannot be read (")
    assert run.notes[1] == "metrics.jsonl has 2 lines that cannot be read"
    assert run.notes[2].startswith("eval.json does not say after how many interactions")


@pytest.mark.parametrize(
    ("result", "mean", "note"),
    [
        ({"mean": 5.0, "low": 4.0, "high": 6.0}, 5.0, "eval.json lists no episode scores"),
        ({"episodes": [1.0, "x"], "mean": 5.0}, 5.0, "eval.json has episode scores that are not numbers"),
        ({"episodes": []}, None, "eval.json lists no episode scores and no mean, so there is no final score"),
    ],
)
def test_partial_evaluations(write_run: WriteRun, result: dict[str, object], mean: float | None, note: str) -> None:
    path = write_run("run", CPU)
    (path / "eval.json").write_text(json.dumps({**result, "interactions": END}))
    run = load_run(path)
    assert (run.final.mean if run.final else None) == mean
    assert run.notes == (note,)


def test_an_empty_directory_and_a_missing_one(tmp_path: Path) -> None:
    run = load_run(tmp_path)
    assert run.notes == ("config.json is missing", "metrics.jsonl is missing", "eval.json is missing")
    assert run.state == "unfinished"
    with pytest.raises(ConfigError, match=r"nothing at .*nowhere: give a run directory"):
        load_run(tmp_path / "nowhere")


def test_runs_are_found_below_but_not_inside_a_run(write_run: WriteRun, tmp_path: Path) -> None:
    first, second = write_run("sweep/b", CPU), write_run("sweep/deep/a", CPU)
    (first / "checkpoints").mkdir()
    (first / "checkpoints" / "config.json").write_text("{}")
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    assert find_runs([tmp_path, first]) == [first, second]
    with pytest.raises(ConfigError, match="nothing at"):
        find_runs([tmp_path / "nowhere"])


def test_benchmarks_are_told_from_other_json(write_run: WriteRun, tmp_path: Path) -> None:
    bench = {"machine": {"gflops": 300.0}, "parts": {}}
    for place in ("bench/one.json", "bench/other/one.json"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(json.dumps(bench))
    (tmp_path / "bench" / "list.json").write_text("[]")
    (tmp_path / "bench" / "half.json").write_text('{"machine": {')
    (write_run("run", CPU) / "bench.json").write_text(json.dumps(bench))
    assert list(find_benchmarks([tmp_path])) == ["one", "one (2)"]
    assert find_benchmarks([tmp_path / "bench" / "one.json"]) == {"one": bench}
