"""Published tables: complete, consistent with each other, and normalised as the paper normalises."""

from __future__ import annotations

import numpy as np
import pytest

from twm.config import ConfigError
from twm.lab import scores


def test_26_games_in_every_column() -> None:
    assert len(scores.GAMES) == 26
    assert scores.GAMES[0] == "Alien"
    assert scores.GAMES[-1] == "UpNDown"
    for method in (*scores.REFERENCES, *scores.METHODS):
        assert tuple(scores.published(method)) == scores.GAMES
    for count in scores.CHECKPOINTS:
        assert tuple(scores.published_at(count)) == scores.GAMES


def test_normalise_by_hand() -> None:
    """Krull: (4234 - 1598) / (2665.5 - 1598) = 2636 / 1067.5 = 2.46932."""
    assert scores.normalise("Krull", 4234.0) == pytest.approx(2.46932, abs=1e-5)
    assert scores.normalise("Pong", -20.7) == 0.0
    assert scores.normalise("Pong", 14.6) == 1.0


@pytest.mark.parametrize(
    ("method", "mean", "median"),
    [
        ("TWM", 0.956, 0.505),
        ("SPR", 0.616, 0.396),
        ("DrQ(ε)", 0.465, 0.313),
        ("DER", 0.350, 0.189),
        ("SimPLe", 0.332, 0.134),
        ("CURL", 0.261, 0.092),
        ("Random", 0.0, 0.0),
        ("Human", 1.0, 1.0),
    ],
)
def test_normalised_mean_and_median_match_the_paper(method: str, mean: float, median: float) -> None:
    normalised = [scores.normalise(game, score) for game, score in scores.published(method).items()]
    assert np.mean(normalised) == pytest.approx(mean, abs=0.001)
    assert np.median(normalised) == pytest.approx(median, abs=0.001)
    if method in scores.METHODS:
        assert scores.published_aggregates()[method] == {"mean": mean, "median": median}


def test_sample_efficiency_means_match_the_paper() -> None:
    expected = {5_000: 0.007, 10_000: 0.133, 25_000: 0.408, 50_000: 0.624, 75_000: 0.832, 100_000: 0.956}
    assert scores.published_means_at() == expected
    for count, mean in expected.items():
        normalised = [scores.normalise(game, score) for game, score in scores.published_at(count).items()]
        assert np.mean(normalised) == pytest.approx(mean, abs=0.001)


def test_the_two_tables_agree_on_the_final_score() -> None:
    assert scores.published_at(100_000) == scores.published("TWM")


def test_other_figures() -> None:
    assert {row.part: row.per_second for row in scores.throughput()} == {
        "world_model_update": 16_800,
        "imagination": 39_000,
        "imagination_vanilla": 19_900,
        "policy_update": 700_000,
        "act_z": 653,
        "act_zh": 213,
    }
    hours = {(row.method, row.machine): row.hours for row in scores.wall_clock()}
    assert hours["SimPLe", "NVIDIA P100"] == (500.0, 500.0)
    assert hours["TWM", "NVIDIA P100"] == (23.3, 23.3)
    assert hours["TWM", "NVIDIA RTX 3090"] == (12.0, 13.0)
    millions = scores.parameters_in_millions()
    assert millions["observation"] + millions["dynamics"] == pytest.approx(millions["world model"])
    assert millions["world model"] + millions["actor-critic"] == pytest.approx(millions["total"])


def test_peers_agree_with_the_paper_where_both_speak() -> None:
    ours = scores.published_aggregates()
    for peer in scores.peers():
        assert peer.note
        if peer.method in ours:
            assert (peer.mean, peer.median) == (ours[peer.method]["mean"], ours[peer.method]["median"])
    assert {peer.method: peer.iqm for peer in scores.peers()}["TWM"] == 0.459


def test_returned_tables_are_copies() -> None:
    scores.published("TWM")["Pong"] = 21.0
    assert scores.published("TWM")["Pong"] == 18.8


def test_errors_name_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"no random and human scores of 'Catch'.*Alien"):
        scores.normalise("Catch", 1.0)
    with pytest.raises(ConfigError, match="'PPO': expected one of Random, Human, DER"):
        scores.published("PPO")
    with pytest.raises(ConfigError, match="after 20,000 interactions: expected one of 5,000"):
        scores.published_at(20_000)
    with pytest.raises(ConfigError, match="'weather'"):
        scores.source("weather")
