from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from twm.config import ConfigError
from twm.train.files import RunError
from twm.train.metrics import MetricLog, read, without_times


def test_records_come_back(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricLog(path) as log:
        log.log({"interactions": 1, "loss/reward": torch.tensor(0.5), "score": np.float64(2), "name": "Catch"})
        assert len(read(path)) == 1, "a record is there as soon as log returns"
        log.log({"interactions": 2, "loss/reward": float("nan"), "range": [float("-inf"), 1]})
    assert read(path) == [
        {"interactions": 1, "loss/reward": 0.5, "score": 2.0, "name": "Catch"},
        {"interactions": 2, "loss/reward": None, "range": [None, 1]},
    ]

    def refuse(text: str) -> None:
        raise ValueError(text)

    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_a_resumed_log_is_the_uninterrupted_one(tmp_path: Path) -> None:
    """Three records, a checkpoint, two more, killed in a third; resumed, they are made again."""
    twin, path = tmp_path / "twin.jsonl", tmp_path / "metrics.jsonl"
    with MetricLog(twin) as log:
        for step in range(8):
            log.log({"interactions": step, "time/seconds": 0.25})
    log = MetricLog(path)
    for step in range(5):
        if step == 3:
            position = log.position
        log.log({"interactions": step, "time/seconds": 0.125 + step})
    log.close()
    with path.open("a") as file:
        file.write('{"interactions": 5, "ti')
    assert len(read(path)) == 5
    with MetricLog(path) as log:
        assert log.truncate(position) is None
        assert log.position == position == 3
        for step in range(3, 8):
            log.log({"interactions": step, "time/seconds": 7})
    assert without_times(read(path)) == without_times(read(twin)) == [{"interactions": step} for step in range(8)]


def test_position_does_not_depend_on_timings(tmp_path: Path) -> None:
    positions = []
    for name, seconds in (("a", 1), ("b", 1.23456789)):
        with MetricLog(tmp_path / name) as log:
            log.log({"time/seconds": seconds})
            positions.append(log.position)
    assert positions == [1, 1]


def test_truncate_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricLog(path) as log:
        log.log({"a": 1})
        assert log.truncate(0) is None
        assert path.read_bytes() == b""
        log.log({"a": 2})
    assert read(path) == [{"a": 2}]


def test_lost_records_are_told(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricLog(path) as log:
        log.log({"a": 1})
        assert log.truncate(3) == f"{path} has lost 2 of the 3 records before the checkpoint; the rest goes on"
        log.log({"a": 4})
    assert read(path) == [{"a": 1}, {"a": 4}]


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\n{"a"\n{"a": 3}\n')
    with pytest.raises(RunError, match="line 2 is not valid JSON"):
        read(path)
    path.write_text("3\n")
    with pytest.raises(RunError, match="line 1 holds int, expected an object"):
        read(path)


def test_disk_full_leaves_whole_lines(tmp_path: Path, with_file_limit: Any) -> None:
    path = tmp_path / "metrics.jsonl"

    def fill() -> None:
        log = MetricLog(path)
        while True:
            log.log({"interactions": 123456789})

    assert with_file_limit(100, fill).text == f"RunError: cannot write {path}: File too large"
    assert path.read_bytes() == b'{"interactions": 123456789}\n' * 3


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot open .*metrics.jsonl: No such file or directory"):
        MetricLog(tmp_path / "gone" / "metrics.jsonl")


# --------------------------------------------------------------------------------------------------
# Sinks


def test_trackers_are_loaded_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it now fails
    MetricLog(tmp_path / "metrics.jsonl").close()
    for name in ("wandb", "tensorboard"):
        with pytest.raises(ConfigError) as error:
            MetricLog(tmp_path / "metrics.jsonl", [name])
        assert str(error.value) == (
            f'metrics were to go to {name}, which is not installed: pip install "twm[track]", or leave {name} out'
        )
    with pytest.raises(ConfigError, match="unknown metric sink mlflow; expected tensorboard or wandb"):
        MetricLog(tmp_path / "metrics.jsonl", ["mlflow"])


def test_tensorboard_shows_a_resumed_run_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps in ([10, 20, 30], [20, 30, 40]):
        with MetricLog(tmp_path / "metrics.jsonl", ["tensorboard"]) as log:
            log.truncate(1)
            for step in steps:
                log.log({"interactions": step, "loss": step / 2, "name": "Catch", "gap": float("nan")})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert sorted(events.Tags()["scalars"]) == ["interactions", "loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(10, 5), (20, 10), (30, 15), (40, 20)]


def test_wandb_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package itself wants a server, so its three calls are recorded instead."""
    calls: list[Any] = []

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            calls.append((step, values))

        def finish(self) -> None:
            calls.append("finish")

    def init(**options: Any) -> Run:
        calls.append(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    for step in (10, 20):
        with MetricLog(tmp_path / "metrics.jsonl", ["wandb"], config={"seed": 3}) as log:
            log.log({"interactions": step, "loss": 0.5, "name": "Catch"})
    first, second = calls[0], calls[3]
    assert (first["project"], first["resume"], first["config"]) == ("twm", "allow", {"seed": 3})
    assert first["id"] == second["id"]
    assert calls[1:3] == [(10, {"interactions": 10, "loss": 0.5}), "finish"]
