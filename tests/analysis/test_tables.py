"""Tables with numbers worked out by hand, and empty cells where there is no number."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from twm.analysis import cost_tables, tables
from twm.analysis.runs import load_run
from twm.analysis.variants import Variant, group
from twm.config import Config, preset, with_options
from twm.intervals import Estimate
from twm.lab import scores
from twm.lab.aggregate import performance_profile

WriteRun = Callable[..., Path]
CPU = preset("cpu")


def variants_of(paths: Sequence[Path]) -> list[Variant]:
    return group(load_run(path) for path in paths)[0]


@pytest.fixture
def krull_and_pong(write_run: WriteRun) -> list[Variant]:
    """Two seeds of Krull (2000 and 3000), one of Pong (0), one of Boxing that is still going."""

    def run(env: str, seed: int, *arguments: object) -> Path:
        return write_run(f"{env}-{seed}", with_options(CPU, {"env": env, "seed": seed}), *arguments)

    return variants_of(
        [
            run("Krull", 0, {5_000: 1700.0, 10_000: 1800.0}, [2000.0, 2000.0]),
            run("Krull", 1, {5_000: 1900.0}, [2900.0, 3100.0]),
            run("Pong", 0, {5_000: -20.0}, [-1.0, 1.0]),
            run("Boxing", 0, {5_000: 3.0}),
        ]
    )


def test_result_table(krull_and_pong: list[Variant]) -> None:
    rows = tables.result_table(krull_and_pong)
    by_game = {str(row["Game"]): row for row in rows}
    assert list(by_game)[:26] == list(scores.GAMES)
    krull = by_game["Krull"]
    assert (krull["Random"], krull["Human"], krull["SPR"], krull["TWM (published)"]) == (1598.0, 2665.5, 3681.6, 6349.2)
    assert krull["TWM at 25K (published)"] == 4234.0
    assert (krull["cpu preset"], krull["cpu preset: runs"]) == (2500.0, 2)
    assert by_game["Pong"]["cpu preset: low"] is None  # one run
    assert by_game["Boxing"]["cpu preset"] is None  # not finished
    # Krull (2500 - 1598) / 1067.5 = 0.844965, Pong 20.7 / 35.3 = 0.586402
    part = "2 of 26 games: Krull, Pong"
    assert by_game[f"Normalised mean ({part})"]["cpu preset"] == pytest.approx(0.715684, abs=1e-6)
    assert by_game[f"Normalised mean ({part})"]["Human"] == pytest.approx(1.0)
    assert by_game["Normalised mean (26 games)"]["cpu preset"] is None
    assert by_game["Normalised mean (26 games)"]["TWM (published)"] == pytest.approx(0.956, abs=0.001)
    assert by_game["Normalised median (26 games)"]["SPR"] == pytest.approx(0.396, abs=0.001)


def test_result_table_without_runs_holds_the_published_columns() -> None:
    rows = tables.result_table([])
    assert len(rows) == 28
    assert list(rows[0]) == ["Game", "Random", "Human", "DER", "CURL", "DrQ(ε)", "SPR", "SimPLe", "TWM (published)"]


def test_sample_efficiency_table(krull_and_pong: list[Variant]) -> None:
    rows = {(row["Game"], row["Method"]): row for row in tables.sample_efficiency_table(krull_and_pong)}
    ours = rows["Krull", "cpu preset"]
    assert [ours[column] for column in ("5K", "10K", "25K", "50K")] == [1800.0, 1800.0, 2500.0, None]
    assert rows["Krull", "TWM (published)"]["25K"] == 4234.0
    title = "Normalised mean (Boxing, Krull, Pong)"
    # Boxing 2.9 / 12, Krull 202 / 1067.5, Pong 0.7 / 35.3
    assert rows[title, "cpu preset"]["5K"] == pytest.approx((2.9 / 12 + 202 / 1067.5 + 0.7 / 35.3) / 3)
    assert rows[title, "cpu preset"]["25K"] is None  # Boxing is not there yet
    assert rows["Normalised mean (26 games)", "TWM (published)"]["50K"] == pytest.approx(0.624, abs=0.001)
    assert tables.thin_cells(krull_and_pong) == ["cpu preset, Krull at 10K: 1 of 2 runs"]
    assert tables.sample_efficiency_table([]) == []


def test_environment_table(write_run: WriteRun, krull_and_pong: list[Variant]) -> None:
    krull, pong = tables.environment_table(krull_and_pong)
    assert (krull["Runs"], krull["Score"], krull["Interval over"]) == (2, 2500.0, "runs")
    assert krull["Low"] == pytest.approx(2500 - 12.7062 * 500, rel=1e-5)
    assert (pong["Runs"], pong["Interval over"], pong["Share of optimum"]) == (1, "episodes", None)
    tiny = preset("tiny")
    (catch,) = tables.environment_table(
        variants_of([write_run("Catch", tiny, {}, [0.5, 0.5], random_mean=-0.5, optimal_return=1.0)])
    )
    assert catch["Share of optimum"] == pytest.approx(2 / 3)


def test_run_table_lists_unfinished_runs(krull_and_pong: list[Variant]) -> None:
    rows = {row["Environment"]: row for row in tables.run_table(krull_and_pong)}
    assert rows["Boxing"]["State"] == "unfinished: 5,000 of 25,000 interactions"
    assert (rows["Boxing"]["Score"], rows["Boxing"]["Missing"]) == (None, "eval.json is missing")
    assert rows["Pong"]["Normalised"] == pytest.approx(20.7 / 35.3)


def test_wall_clock_table(krull_and_pong: list[Variant]) -> None:
    rows = cost_tables.wall_clock_table(krull_and_pong)
    assert [row["Method"] for row in rows[:2]] == ["SimPLe", "TWM"]
    ours = rows[-1]
    assert (ours["Method"], ours["Machine"], ours["Hours"], ours["Runs"]) == ("cpu preset", "Test CPU", 2.0, 3)
    (ampere,) = (row for row in rows if row["Machine"] == "NVIDIA RTX 3090")
    assert (ampere["Hours"], ampere["Shortest"], ampere["Longest"]) == (None, 12.0, 13.0)


def test_throughput_table() -> None:
    bench = {"machine": {}, "parts": {"act_z": {"seconds": 0.001, "units": 0.3, "per_second": 1000.0}, "update": None}}
    rows = {row["Part"]: row for row in cost_tables.throughput_table({"two cores": bench})}
    assert (rows["act_z"]["Published"], rows["act_z"]["two cores: per second"]) == (653.0, 1000.0)
    assert rows["imagination"]["two cores: per second"] is None
    assert (rows["update"]["Published"], rows["update"]["two cores: units"]) == (None, None)


def test_parameter_table() -> None:
    counts = {"observation": 8_234_532, "dynamics": 10_779_394, "actor": 1_315_846, "critic": 1_313_281}
    rows = {row["Model"]: row for row in cost_tables.parameter_table(counts)}
    assert (rows["world model"]["Ours"], rows["world model"]["Published (millions)"]) == (19_013_926, 19.0)
    assert rows["total"]["Ours"] == 21_643_053
    assert rows["encoder + actor"]["Ours"] is None  # the encoder was not counted
    for row in rows.values():
        if row["Ours"] is not None:
            assert round(float(row["Ours"]) / 1e6, 1) == pytest.approx(row["Published (millions)"])


def test_csv(tmp_path: Path) -> None:
    estimate = Estimate(0.5, float("nan"), float("nan"))
    rows = tables.aggregate_table({"ours": {"mean": estimate}}, {"TWM": {"mean": 0.956}})
    path = tables.write_csv(rows, tmp_path / "new" / "table.csv")
    with path.open(encoding="utf-8") as file:
        assert list(csv.DictReader(file)) == [
            {"Method": "ours", "Metric": "mean", "Value": "0.5", "Low": "", "High": "", "Source": "our runs"},
            {"Method": "TWM", "Metric": "mean", "Value": "0.956", "Low": "", "High": "", "Source": "published"},
        ]
    profile = performance_profile(np.array([[0.0, 1.0]]), np.array([0.5]))
    (row,) = tables.profile_table({"ours": profile})
    assert (row["Threshold"], row["Share of runs above"]) == (0.5, 0.5)


def test_config_of_the_paper_has_no_checkpoint_column(write_run: WriteRun) -> None:
    """At 100,000 interactions the published score is TWM's final one already."""
    rows = tables.result_table(variants_of([write_run("Pong", with_options(Config(), {"env": "Pong"}), {}, [1.0])]))
    assert not any("TWM at" in column for column in rows[0])
