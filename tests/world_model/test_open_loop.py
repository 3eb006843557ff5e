"""Open-loop imagination: shapes, context, refusals, and agreement with the dynamics model stepped by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import SMALL, image_spec

from twm.types import EnvSpec
from twm.world_model.world_model import WorldModel

SPEC: EnvSpec = image_spec()


@pytest.fixture
def model() -> WorldModel:
    torch.manual_seed(0)
    return WorldModel(SMALL.world_model, SPEC, 0.99).eval()


def observations(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (*shape, *SPEC.observation_shape), dtype=np.uint8)


def test_given_actions(model: WorldModel) -> None:
    dream = model.imagine(observations(2), [[0, 1, 2], [2, 1, 0]])
    assert dream.o.shape == (2, 4, *SPEC.observation_shape)
    assert dream.o.dtype == torch.uint8
    assert dream.a.tolist() == [[0, 1, 2], [2, 1, 0]]
    assert dream.r.shape == dream.gamma.shape == dream.ended.shape == (2, 3)
    assert torch.equal(dream.ended, dream.gamma < 0.495)


def test_the_first_picture_is_the_start_as_the_model_sees_it(model: WorldModel) -> None:
    o = observations(1)
    assert torch.equal(model.imagine(o, [[1]]).o[:, 0], model.decode(model.encode(torch.as_tensor(o))))


def test_temperature_zero_repeats_and_one_draws(model: WorldModel) -> None:
    a = np.zeros((1, 8), int)
    first, second = (model.imagine(observations(1), a, temperature=0.0) for _ in range(2))
    assert torch.equal(first.r, second.r)
    first, second = (model.imagine(observations(1), a) for _ in range(2))
    assert not torch.equal(first.r, second.r)


def test_a_policy_sees_latents_and_hidden_states(model: WorldModel) -> None:
    seen = []

    def policy(i: int, z: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        seen.append((i, tuple(z.shape), tuple(h.shape), bool(h.any())))
        return torch.full((2,), 2)

    dream = model.imagine(observations(2), policy, steps=3)
    assert dream.a.tolist() == [[2, 2, 2]] * 2
    assert seen == [(0, (2, 12), (2, 16), False), (1, (2, 12), (2, 16), True), (2, (2, 12), (2, 16), True)]


def test_context_is_what_the_dynamics_model_was_told(model: WorldModel) -> None:
    """Two real steps in front, then one imagined: the same three steps of the dynamics model by hand."""
    o = observations(1, 3)
    dream = model.imagine(o, [[1]], past_a=[[0, 2]], past_r=[[0.5, -1.0]])
    z = model.encode(torch.as_tensor(o[0]))
    history, stays = model.dynamics.begin(1), torch.zeros(1, dtype=torch.bool)
    for t, (a, r) in enumerate([(0, 0.0), (2, 0.5), (1, -1.0)]):
        h = model.dynamics.step(history, z[t : t + 1], torch.tensor([a]), torch.tensor([r]), stays)
    prediction = model.dynamics.predict(h)
    torch.testing.assert_close(dream.r[:, 0], prediction.r_hat)
    torch.testing.assert_close(dream.gamma[:, 0], prediction.gamma_hat)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([0, 1],), r"expected actions \(2, H\).*got \(2,\)"),
        (([[0, 1, 2]],), r"expected actions \(2, H\).*got \(1, 3\)"),
        ((lambda i, z, h: z,), "say for how many steps"),
    ],
)
def test_actions_that_do_not_fit_are_refused(model: WorldModel, arguments: tuple[object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        model.imagine(observations(2), *arguments)


def test_context_without_its_actions_is_refused(model: WorldModel) -> None:
    with pytest.raises(ValueError, match=r"2 dreams with 3 observations each need past_a of shape \(2, 2\).*got none"):
        model.imagine(observations(2, 3), [[0], [0]])
    with pytest.raises(ValueError, match="expected observations"):
        model.imagine(np.zeros((2, 5), np.uint8), [[0], [0]])
