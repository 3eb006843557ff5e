"""Fast enough: a dream of the cpu preset, and twenty dreams at once."""

from __future__ import annotations

import asyncio
import os
import runpy
import time
from pathlib import Path

import numpy as np
import pytest
from studio.serving import serving

from twm.agent import build
from twm.config import preset
from twm.studio import view
from twm.studio.dream import Dream, Model, Start
from twm.studio.library import Run
from twm.types import EnvSpec

SCRIPT = Path(__file__).parents[2] / "scripts" / "studio_load.py"

pytestmark = pytest.mark.timing


def test_fifteen_frames_a_second_with_the_cpu_preset() -> None:
    """One thread, an Atari game with all its actions, context as long as attention reaches: step, picture, packet.
    The time that this process itself computes, whatever else the machine does."""
    config = preset("cpu")
    c = config.world_model
    spec = EnvSpec("Game", (1, 64, 64), 4, tuple(f"action {i}" for i in range(18)))
    agent = build(config, spec)
    agent.world_model.eval()
    k = c.sequence_length
    start = Start(np.zeros((k + 1, c.latent_variables), np.int64), np.zeros(k, np.int64), np.zeros(k, np.float32), {})
    dream = Dream(Model(agent, config, 0), start)
    times = []
    for _ in range(40):
        begin = time.process_time()
        dream.step([None])
        view.moment({}, dream, None, 0, dream.length)
        times.append(time.process_time() - begin)
    assert np.median(times) < 1 / 15


@pytest.mark.skipif(os.getloadavg()[0] > 3 * (os.cpu_count() or 1), reason="the machine is too busy to measure on")
def test_twenty_dreams_stay_responsive(run: Run) -> None:
    """Nobody is starved, and nobody waits for much longer than everybody's turn (figures: docs/performance.md)."""
    seconds = 4.0
    load = runpy.run_path(str(SCRIPT))
    with serving([run]) as (_, address):
        visitors = asyncio.run(load["visit"](address, 20, seconds, 1, 15.0))
    frames = [len(visitor.frames) for visitor in visitors]
    assert len(frames) == 20
    assert min(frames) >= 0.7 * max(frames) - 1
    everybody = 20 * seconds / sum(frames)  # until all have had their turn
    assert np.median([x for visitor in visitors for x in visitor.answers]) < everybody + 0.1
    assert np.median([x for visitor in visitors for x in visitor.presses]) < 2 * everybody + 0.1
