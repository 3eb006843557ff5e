"""Plans of sweeps: which runs follow, what is refused, and what may be added later."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from twm.config import ConfigError, flatten
from twm.lab.plan import Plan, check, load, make_plan, parse_options, record


def plan(**changes: object) -> Plan:
    return make_plan(**{"preset": "tiny", "envs": ["Catch"], "seeds": 2, **changes})  # type: ignore[arg-type]


def test_every_combination_once_with_the_seeds_last() -> None:
    runs = plan(envs=["Catch", "CartPole-v1"], ablations=["no-rewards"]).runs()
    assert [run.name for run in runs] == [
        "Catch/base/seed0",
        "CartPole-v1/base/seed0",
        "Catch/no-rewards/seed0",
        "CartPole-v1/no-rewards/seed0",
        "Catch/base/seed1",
        "CartPole-v1/base/seed1",
        "Catch/no-rewards/seed1",
        "CartPole-v1/no-rewards/seed1",
    ]
    assert [run.config.seed for run in runs] == [0] * 4 + [1] * 4
    assert [run.config.world_model.rewards_in_input for run in runs] == [True, True, False, False] * 2


def test_all_is_the_26_games() -> None:
    names = [run.name for run in plan(envs=["all"], seeds=1).runs()]
    assert len(names) == 26
    assert names[0] == "Alien/base/seed0"


def test_the_budget_study_keeps_the_budget() -> None:
    runs = plan(preset="paper", envs=["Pong"], seeds=1, budgets=[10_000]).runs()
    assert [(run.name, run.config.train.interactions, run.config.train.samples) for run in runs] == [
        ("Pong/base/seed0", 100_000, 1e9),
        ("Pong/budget-10K/seed0", 10_000, 1e9),
    ]


def test_threads_follow_the_cpus_of_a_run() -> None:
    assert plan(cpus_per_run=2).runs()[0].config.threads == 2
    assert plan(cpus_per_run=2, options={"threads": 1}).runs()[0].config.threads == 1


def test_runs_without_gpus_stay_on_the_cpu() -> None:
    assert plan().runs()[0].config.device == "cpu"
    assert plan(gpus_per_run=0.5).runs()[0].config.device == "auto"
    assert plan(options={"device": "mps"}).runs()[0].config.device == "mps"


def test_options_are_parsed_as_their_types() -> None:
    texts = ["replay.temperature=inf", "--world-model.layers=3", "policy.norm=true", "world_model.tokens=one"]
    options = parse_options(texts)
    assert options == {
        "replay.temperature": math.inf,
        "world_model.layers": 3,
        "policy.norm": True,
        "world_model.tokens": "one",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replay.temperature", r"--set takes path=value"),
        ("replay.temprature=3", r"unknown option replay.temprature \(did you mean temperature"),
        ("world_model.layers=two", r"world_model.layers must be a whole number, but came as 'two'"),
        ("seed=3", r"--set cannot set seed: use --envs and --seeds"),
    ],
)
def test_bad_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_options([text])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"envs": []}, "needs at least one environment"),
        ({"envs": ["Brakeout"]}, "unknown environment 'Brakeout': did you mean Breakout"),
        ({"envs": ["Catch", "catch"]}, "would share a name, the first is catch/base/seed0"),
        ({"seeds": 0}, "at least 1 seed"),
        ({"cpus_per_run": 0}, "at least 1 CPU"),
        ({"options": {"world_model.heads": 3}}, "must be a multiple of world_model.heads"),
        ({"preset": "huge"}, "unknown preset 'huge'"),
        ({"preset": "cpu", "ablations": ["no-rewards"]}, "no-rewards is the same as base with the preset cpu"),
        ({"preset": "cpu", "budgets": [25_000]}, "budget-25K is the same as base"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(plan(**changes))


def test_an_ablation_is_named_once() -> None:
    with pytest.raises(ConfigError, match="no-rewards is named twice"):
        plan(ablations=["no-rewards", "no-rewards"])
    with pytest.raises(ConfigError, match="unknown ablation 'no-reward'"):
        plan(ablations=["no-reward"])


def test_the_file_gives_the_same_runs(tmp_path: Path) -> None:
    first = plan(ablations=["uniform-sampling"], options={"train.interactions": 5000})
    record(first, tmp_path / "sweep")
    again = load(tmp_path / "sweep" / "sweep.json")
    assert [(run.name, flatten(run.config)) for run in again.runs()] == [
        (run.name, flatten(run.config)) for run in first.runs()
    ]
    json.loads((tmp_path / "sweep" / "sweep.json").read_text(), parse_constant=pytest.fail)  # no Infinity


def test_a_sweep_may_grow_but_not_change(tmp_path: Path) -> None:
    record(plan(), tmp_path)
    record(plan(seeds=3, envs=["Catch", "CartPole-v1"], ablations=["no-rewards"]), tmp_path)
    for changes, message in (
        ({"seeds": 2}, r"lacks --envs CartPole-v1, --ablation no-rewards, --seeds 3"),
        ({"preset": "cpu"}, r"differs in --preset"),
        ({"options": {"train.interactions": 5000}}, r"differs in --set"),
    ):
        with pytest.raises(ConfigError, match=message):
            record(plan(**changes), tmp_path)  # type: ignore[arg-type]


def test_a_variant_keeps_its_options(tmp_path: Path) -> None:
    record(plan(ablations=["uniform-sampling"]), tmp_path)
    path = tmp_path / "sweep.json"
    changed = Plan("tiny", ("Catch",), 2, {"base": {}, "uniform-sampling": {"replay.temperature": 50.0}})
    with pytest.raises(ConfigError, match=r"differs in the options of uniform-sampling\): choose another --out"):
        record(changed, tmp_path)
    assert load(path).variants["uniform-sampling"] == {"replay.temperature": "inf"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "expected an object with preset, envs, seeds and, optionally, cpus_per_run"),
        ('{"preset": "tiny", "envs": ["Catch"], "seeds": 1, "game": "Pong"}', "expected an object with preset"),
        ('{"preset": "tiny", "envs": "Catch", "seeds": 1}', "envs must be a list of texts, but it is 'Catch'"),
        ('{"preset": "tiny", "envs": ["Catch"], "seeds": "5"}', "seeds must be a whole number, but it is '5'"),
        ('{"preset": "tiny", "envs": ["Catch"], "seeds": 1, "set": ["a=1"]}', "set must be an object, options by path"),
        ('{"preset": "tiny", "envs": ["Catch"], "seeds": 1, "variants": {"base": 3}}', "variants must be an object of"),
        ('{"preset": "tiny", "envs": ["Catch"], "seeds": 1, "cpus_per_run": 0.5}', "cpus_per_run must be a whole numb"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path / "sweep.json")


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match="not empty and holds no sweep"):
        record(plan(), tmp_path)
