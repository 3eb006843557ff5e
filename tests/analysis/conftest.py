"""Run directories for tests of reports: made up, with exactly the scores a test asks for, and a real small one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from small import small

from twm.config import Config, to_dict

WriteRun = Callable[..., Path]


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """``write_run(name, config, evaluations, episodes)`` writes ``tmp_path / name`` as a run leaves it."""

    def write(
        name: str,
        config: Config,
        evaluations: Mapping[int, float] | None = None,
        episodes: Sequence[float] | None = None,
        **result: Any,
    ) -> Path:
        """``evaluations`` are mean scores during training; without ``episodes`` the run has no final evaluation."""
        path = tmp_path / name
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(to_dict(config)))
        (path / "machine.json").write_text(json.dumps({"cpu": "Test CPU", "gpu": None}))
        records: list[dict[str, Any]] = [{"interactions": 1, "loss/latent": 3.0, "time/elapsed": 1.0}]
        for count, mean in (evaluations or {}).items():
            scores = {"eval/score_mean": mean, "eval/score_low": mean - 1, "eval/score_high": mean + 1}
            records.append({"interactions": count, **scores})
        (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        if episodes is not None:
            end = {
                "interactions": config.train.interactions,
                "seconds": 7200.0,
                "random_mean": 0.0,
                "optimal_return": None,
            }
            (path / "eval.json").write_text(json.dumps({"episodes": list(episodes), **end, **result}))
        return path

    return write


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run on the toy environment, trained for a moment and finished. Read it, do not write to it."""
    from twm.train.loop import train

    options = {"interactions": 120, "prefill": 80, "samples": 3000, "pretrain_samples": 1000, "final_episodes": 2}
    options |= {"eval_every": 100, "eval_episodes": 2, "log_every": 10}
    config = small(threads=1, **{f"train__{name}": value for name, value in options.items()})
    path = tmp_path_factory.mktemp("runs") / "small"
    train(config, path, quiet=True)
    return path
