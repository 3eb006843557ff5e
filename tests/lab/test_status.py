"""Where a sweep stands: the table and the time left."""

from __future__ import annotations

from pathlib import Path

import pytest

from twm.lab.status import Status, counts, seconds_left, sweep_status, table
from twm.train.files import RunError

STANDING = [
    Status("a", "done", 10, 10, 1.0, 100.0),
    Status("b", "running", 5, 10, None, 50.0),
    Status("c", "waiting", 0, 10),
    Status("d", "failed", 0, 10, error="no luck"),
]


def test_the_time_left_by_hand() -> None:
    """a took 100 s. b, half of the way after 50 s, has 50 s left; c takes 100 s as the others: 150 s, one at a time."""
    assert seconds_left(STANDING) == 150.0
    assert seconds_left([*STANDING, Status("e", "running", 5, 10, None, 50.0)]) == (150.0 + 50.0) / 2


def test_there_is_no_time_left_to_tell_while_nothing_runs() -> None:
    assert seconds_left([run for run in STANDING if run.state != "running"]) is None
    assert seconds_left([Status("b", "running", 0, 10)]) is None


def test_the_table_has_what_matters_first() -> None:
    assert [line.split() for line in table(STANDING).splitlines()[1:-1]] == [
        ["b", "running", "5/10", "0:00:50"],
        ["d", "failed", "0/10"],
        ["no", "luck"],
        ["a", "done", "10/10", "1.0"],
    ]
    assert table(STANDING).splitlines()[-1] == "1 running, 1 failed, 1 done, 1 waiting, about 0:02:30 left"
    assert counts(STANDING) == "1 running, 1 failed, 1 done, 1 waiting"
    assert [line.split()[0] for line in table(STANDING, with_done=False).splitlines()[1:-1]] == ["b", "d", "no"]


def test_a_directory_without_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no sweep: expected a directory made by twm sweep --out"):
        sweep_status(tmp_path)
