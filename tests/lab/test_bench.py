"""The benchmark: every promised part is there, and the counted work is that of the paper's networks."""

from __future__ import annotations

import json

import pytest

from twm.config import preset, with_options
from twm.lab.bench import bench, counted_gflop, table
from twm.types import EnvSpec

NAMES = {
    "world_model_update",
    "imagination",
    "imagination_vanilla",
    "policy_update",
    "act_z",
    "act_z_torch",
    "act_zh",
    "env_step",
    "replay_sample",
}


@pytest.mark.slow
def test_every_part_is_timed_and_units_are_seconds_times_gflops() -> None:
    config = with_options(preset("tiny"), {"world_model.batch_size": 4, "policy.batch_size": 8})
    result = json.loads(json.dumps(bench(config, quick=True)))
    gflops = result["machine"]["gflops"]
    assert gflops > 0
    assert set(result["parts"]) >= NAMES
    for part in result["parts"].values():
        assert part["seconds"] > 0
        assert part["units"] == pytest.approx(part["seconds"] * gflops)
    assert "cached" in table(result)


def test_counted_work_of_the_paper() -> None:
    """By hand, in multiply-adds a frame: encoder 34.4M, decoder 50.2M (convolutions, linear layers), forward and twice
    that backward for 1,600 frames; 200 more are encoded only; the first convolution has no gradient of its input."""
    pong = EnvSpec("Pong", (1, 64, 64), 4, tuple("abcdef"))
    counted = counted_gflop(preset("paper"), pong)
    conv1 = 31 * 31 * 48 * 4 * 16
    encoder = conv1 + 14 * 14 * 96 * 48 * 16 + 6 * 6 * 192 * 96 * 16 + 2 * 2 * 384 * 192 * 16
    encoder += 1536 * 512 + 512 * 512 + 512 * 1024
    decoder = 1024 * 768 + 25 * 768 * 192 + 25 * 25 * 192 * 96 + 169 * 36 * 96 * 48 + 900 * 36 * 48 * 4
    observation = 2e-9 * (1600 * (3 * (encoder + decoder) - conv1) + 200 * encoder)
    tokens = 100 * (3 * 17 - 1)  # the last layer answers at the 17 actions only
    layer = 4 * 256 * 256 + 2 * 256 * 1024
    dynamics = 2e-9 * 3 * tokens * 10 * layer
    assert observation == pytest.approx(820, rel=0.01)
    assert observation + 0.9 * dynamics < counted["world_model_update"] < observation + 1.4 * dynamics
