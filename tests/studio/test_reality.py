"""Difference and departure by hand; an episode that is played again is the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from twm.studio.dream import Model
from twm.studio.reality import Reality, departure, difference

ORIGIN = {"kind": "real", "seed": 4, "steps": 12, "by": "policy", "beside": True}


def test_difference_is_that_of_the_worst_patch() -> None:
    """One of 16 pixels of a 4 x 4 patch off by 51/255 = 0.2: 0.2 / 16 = 0.0125; three of them: 0.0375."""
    x = np.zeros((1, 16, 16), np.uint8)
    y = x.copy()
    y[0, 5, 5] = 51
    assert difference(x, y) == pytest.approx(0.0125)
    y[0, 12, 12:15] = 51
    assert difference(x, y) == pytest.approx(0.0375)
    assert difference(x, x) == 0


def test_difference_of_vectors() -> None:
    """ln(1 + (e - 1)) = 1."""
    assert difference(np.array([0.0, 2.0]), np.array([np.e - 1, 2.0])) == pytest.approx(1.0)


def test_departure_needs_three_steps_in_a_row() -> None:
    floor = [0.05] * 8
    assert departure([0.1, 0.2, 0.2, 0.1, 0.2, 0.2, 0.2, 0.1], floor) == 4
    assert departure([0.1, 0.2, 0.2, 0.1, 0.2, 0.2, 0.15, 0.2], floor) is None  # 0.15 is not above 0.05 + 0.1
    assert departure([], []) is None


def test_the_same_actions_lead_to_the_same_frames(model: Model) -> None:
    actions = [0, 2, 1, 1, 2, 0, 0, 1]
    reality = Reality(model, ORIGIN)
    for a in actions:
        reality.step(a)
    first = [frame.copy() for frame in reality.frames]
    reality.go_back(actions[:3])
    assert len(reality.frames) == 4
    for a in actions[3:]:
        reality.step(a)
    np.testing.assert_array_equal(first, reality.frames)
    again = Reality(model, ORIGIN)
    np.testing.assert_array_equal(again.start.z, reality.start.z)
    np.testing.assert_array_equal(again.frames[0], first[0])


def test_a_start_has_as_much_context_as_attention_reaches(model: Model) -> None:
    """ℓ = 8 in the tiny preset; an episode of Catch takes 39 steps, so 12 steps are one episode, 42 begin a second."""
    start = Reality(model, ORIGIN).start
    assert start.z.shape == (9, 16)
    assert start.a.shape == (8,)
    assert start.r.shape == (8,)
    start = Reality(model, {**ORIGIN, "steps": 42}).start
    assert start.a.shape == (3,)
    assert Reality(model, {**ORIGIN, "steps": 0}).start.a.shape == (0,)


def test_rewards_are_those_that_the_model_sees(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of squashed rewards predicts tanh(1) = 0.7616 for a catch: what it is compared with must be that too."""
    origin = {**ORIGIN, "by": "random"}

    def rewards() -> list[float]:
        reality = Reality(model, origin)
        for _ in range(20):
            reality.step(1)
        return reality.rewards

    plain = rewards()
    assert {abs(r) for r in plain} == {0.0, 1.0}
    monkeypatch.setattr(model.agent.world_model.dynamics, "squash", torch.tanh)
    np.testing.assert_allclose(rewards(), 0.761594 * np.array(plain), atol=1e-5)


def test_after_its_end_reality_stands_still(model: Model) -> None:
    reality = Reality(model, {**ORIGIN, "steps": 37, "by": "random"})
    for t in range(5):
        reality.step(1)
        reality.compare(t, reality.frames[t])
    assert reality.ended_at == 2
    np.testing.assert_array_equal(reality.frames[2], reality.frames[5])
    assert reality.facts(0, 1)["ended"] is None
    assert reality.facts(0, 2)["ended"] == 2
    assert reality.rewards[3:] == [0.0, 0.0, 0.0]
