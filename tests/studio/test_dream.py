"""Dreams: right numbers, exact repetition, bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small import small, vector_spec

from twm.agent import build
from twm.config import Config
from twm.nn import latents
from twm.studio.dream import Dream, Model, Start
from twm.studio.inside import picture
from twm.studio.keyframes import Keyframes
from twm.studio.limits import TRAIL_BYTES
from twm.studio.protocol import ProtocolError
from twm.studio.randomness import repeatable
from twm.types import EnvSpec

SPEC = EnvSpec("Picture", (1, 16, 16), 2, ("a", "b", "c"))
VARIANTS: list[dict[str, Any]] = [
    {},
    {"world_model__tokens": "one", "policy__input": "zh"},
    {"world_model__rewards_in_input": False},
    {"world_model__memory": False},
    {"world_model__reward_transform": "tanh"},
]


def make_model(config: Config | None = None) -> Model:
    torch.manual_seed(3)
    config = config or small()
    agent = build(config, SPEC)
    agent.world_model.eval()
    for parameter in agent.world_model.dynamics.latent_head.parameters():
        parameter.data *= 4  # opinions strong enough that temperature and actions matter
    return Model(agent, config, 100)


def make_start(model: Model, k: int = 3) -> Start:
    c = model.config.world_model
    rng = np.random.default_rng(0)
    z = rng.integers(c.latent_categories, size=(k + 1, c.latent_variables))
    a, r = rng.integers(3, size=k), rng.normal(size=k).astype(np.float32)
    origin = {"kind": "latents", "z": z.tolist(), "a": a.tolist(), "r": [float(x) for x in r]}
    return Start(z, a, r, origin)


def play(dream: Dream, steps: int, **options: Any) -> None:
    for t in range(steps):
        dream.step([t % 3 if t % 4 else None] * dream.rows, **options)


def path(dream: Dream) -> list[list[int]]:
    return [moment.z.ravel().tolist() for moment in dream.trail]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("k", [0, 3])
def test_hidden_states_are_those_of_the_whole_sequence(options: dict[str, Any], k: int) -> None:
    """Context and dream as one sequence through ``DynamicsModel.forward``: the same h, and predictions from it."""
    model = make_model(small(**options))
    start, steps = make_start(model, k), 5 - k
    dream = Dream(model, start, seed=1)
    play(dream, steps)
    categories = np.concatenate([start.z, [m.z[0] for m in dream.trail[1:-1]]])
    a = np.concatenate([start.a, [m.a[0] for m in dream.trail[1:]]])
    r = np.concatenate([start.r, [m.r[0] for m in dream.trail[1:]]])
    dynamics = model.agent.world_model.dynamics
    z = latents.one_hot(torch.as_tensor(categories), 4)[None]
    one_episode = torch.zeros(1, len(a), dtype=torch.long)
    with torch.no_grad():
        h = dynamics(z, torch.as_tensor(a)[None], torch.as_tensor(r, dtype=torch.float32)[None], one_episode)
    torch.testing.assert_close(dream.now.h[0], h[0, -1], atol=1e-5, rtol=1e-5)
    assert dream.now.r[0] == pytest.approx(dynamics.predict(h[0, -1]).r_hat.item(), abs=1e-5)


@pytest.mark.parametrize("options", VARIANTS)
def test_going_back_and_on_is_the_same_dream(options: dict[str, Any]) -> None:
    """Past several keyframes and moves of the memory, bit for bit."""
    dream = Dream(make_model(small(**options)), make_start(make_model()), rows=2, seed=5)
    play(dream, 60)
    before, values = path(dream), [m.value.tolist() for m in dream.trail]
    actions = [m.a.tolist() for m in dream.trail[1:]]
    for t in (37, 16, 0, 59):
        dream.seek(t)
        while dream.t < 60:
            dream.step(actions[dream.t])
        assert path(dream) == before
        assert [m.value.tolist() for m in dream.trail] == values


def test_seeds_and_actions_make_the_dream() -> None:
    model = make_model()
    dreams = [Dream(model, make_start(model), seed=seed) for seed in (1, 1, 2)]
    for dream in dreams:
        play(dream, 20)
    assert path(dreams[0]) == path(dreams[1]) != path(dreams[2])
    other = Dream(model, make_start(model), seed=1)
    for t in range(20):
        other.step([2 if t == 10 else int(dreams[0].trail[t + 1].a[0])])
    assert path(other)[:11] == path(dreams[0])[:11]
    assert path(other) != path(dreams[0])


def test_seeking_keeps_the_future_and_another_one_replaces_it() -> None:
    dream = Dream(make_model(), make_start(make_model()), seed=1)
    play(dream, 10)
    before = path(dream)
    dream.seek(4)
    assert dream.length == 10
    assert dream.now.z.ravel().tolist() == before[4]
    dream.seek(10)
    dream.seek(4)
    dream.reseed(99)
    assert dream.length == 4
    assert dream.seed == 99
    play(dream, 6)
    assert path(dream)[:5] == before[:5]
    assert path(dream) != before
    with pytest.raises(ProtocolError, match="expected a step from 0 to 10, but came 11"):
        dream.seek(11)


def test_random_numbers_outside_stay_as_they_are() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with repeatable(1):
        inside = torch.rand(3)
    torch.testing.assert_close(torch.rand(3), expected)
    with repeatable(1):
        torch.testing.assert_close(torch.rand(3), inside)


def test_what_others_draw_changes_no_dream() -> None:
    """A reader in another thread makes fresh networks from torch's own numbers while a dream goes on."""
    paths = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        dream = Dream(make_model(), make_start(make_model()), seed=1)
        for _ in range(8):
            dream.step([None])
            torch.rand(seed * 5)
        paths.append(path(dream))
    assert paths[0] == paths[1]


def test_how_the_policy_acts_changes_no_draw_but_its_own() -> None:
    """A link does not hold the policy's temperature: the actions that it led to, and the seed, are all."""
    first = Dream(make_model(), make_start(make_model()), seed=1)
    for _ in range(8):
        first.step([None], policy_temperature=0.0)
    again = Dream(make_model(), make_start(make_model()), seed=1)
    for moment in first.trail[1:]:
        again.step([int(moment.a[0])])
    assert path(again) == path(first)


def test_temperature_zero_takes_the_most_likely_category() -> None:
    dream = Dream(make_model(), make_start(make_model()), seed=1)
    dream.step([1], temperature=0.0)
    np.testing.assert_array_equal(dream.now.z[0], dream.expected_latents(0).argmax(-1))
    np.testing.assert_allclose(dream.expected_latents(0).sum(-1), 1, rtol=1e-5)


def test_without_context_nothing_was_expected() -> None:
    dream = Dream(make_model(), make_start(make_model(), 0))
    np.testing.assert_array_equal(dream.expected_latents(0).argmax(-1), dream.now.z[0])
    assert dream.expected_latents(0).max() == 1


def test_an_edit_changes_picture_opinion_and_what_follows() -> None:
    model = make_model()
    dream = Dream(model, make_start(model), rows=2, seed=1)
    play(dream, 5)
    before = dream.frames([dream.now])
    old = dream.now
    category = (int(old.z[1, 2]) + 1) % 4
    dream.edit(1, 2, category)
    after = dream.frames([dream.now])
    assert dream.now.z[1, 2] == category
    assert dream.length == 5
    np.testing.assert_array_equal(before[0, 0], after[0, 0])
    assert (before[0, 1] != after[0, 1]).any()
    assert dream.now.value[0] == old.value[0]
    assert dream.now.value[1] != old.value[1]
    assert old.z[1, 2] != category  # what was shown before is not changed behind anyone's back
    for bad in ((2, 0, 0), (0, 3, 0), (0, 0, 4)):
        with pytest.raises(ProtocolError, match=r"expected a (row|variable|category) from 0 to"):
            dream.edit(*bad)


def test_together_all_rows_do_what_the_first_does() -> None:
    dream = Dream(make_model(), make_start(make_model()), rows=4, seed=1)
    free = [dream.step([None] * 4).a.tolist() for _ in range(20)]
    together = [dream.step([None] * 4, together=True).a.tolist() for _ in range(20)]
    assert any(len(set(a)) > 1 for a in free)
    assert all(len(set(a)) == 1 for a in together)


@pytest.mark.parametrize(("k", "steps"), [(0, 0), (0, 3), (3, 0), (3, 1), (3, 4), (5, 9)])
def test_a_branch_begins_where_the_row_is(k: int, steps: int) -> None:
    """With the ℓ = 5 steps before it, of the dream and, if that is shorter, of its own context."""
    model = make_model()
    start = make_start(model, k)
    dream = Dream(model, start, rows=2, seed=1)
    play(dream, steps)
    branch = dream.branch(1)
    z = np.concatenate([start.z[:-1], [m.z[1] for m in dream.trail]])
    a = np.concatenate([start.a, [m.a[1] for m in dream.trail[1:]]])
    r = np.concatenate([start.r, [m.r[1] for m in dream.trail[1:]]])
    n = min(5, k + steps)
    np.testing.assert_array_equal(branch.z, z[len(z) - n - 1 :])
    np.testing.assert_array_equal(branch.a, a[len(a) - n :])
    np.testing.assert_array_equal(branch.r, r[len(r) - n :])
    Dream(model, branch, rows=4).step([0] * 4)


def test_a_dream_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twm.studio.dream.MAX_STEPS", 3)
    dream = Dream(make_model(), make_start(make_model()))
    play(dream, 3)
    with pytest.raises(ProtocolError, match="a dream has at most 3 steps"):
        dream.step([0])
    dream.seek(1)
    dream.step([0])


def test_the_trail_fits_into_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    dream = Dream(make_model(), make_start(make_model()), rows=4)
    assert dream.max_steps * dream._bytes_per_step() <= TRAIL_BYTES
    play(dream, 10)
    for moment in dream.trail:
        arrays = [x for x in moment if isinstance(x, np.ndarray)]
        assert sum(x.nbytes for x in arrays) + moment.h.nbytes < dream._bytes_per_step()
    monkeypatch.setattr("twm.studio.dream.TRAIL_BYTES", 10 * dream._bytes_per_step())
    assert Dream(make_model(), make_start(make_model()), rows=4).max_steps == 10


def test_keyframes_thin_out_within_their_budget() -> None:
    """Room for four: kept at 0, 16, 32, 48, then every 32, then every 64 steps."""
    model = make_model()
    dream = Dream(model, make_start(model), rows=2, seed=1)
    play(dream, 20)  # the memory is full by then: keyframes no longer grow
    size = Keyframes(model.agent.world_model.dynamics, dream._history).nbytes
    dream.keyframes = Keyframes(model.agent.world_model.dynamics, dream._history, budget=4 * size)
    dream.keyframes._frames.clear()
    kept = []
    for t in range(0, 300, 16):
        dream.keyframes.offer(t, dream._history)
        kept.append(sorted(dream.keyframes._frames))
        assert dream.keyframes.nbytes <= 4 * size
    assert kept[3] == [0, 16, 32, 48]
    assert kept[4] == [0, 32, 64]
    assert kept[-1] == [0, 128, 256]
    assert dream.keyframes.interval == 128


def test_the_recipe_says_what_was_done() -> None:
    model = make_model()
    dream = Dream(model, make_start(model, 1), rows=2, seed=7)
    dream.step([1, 2])
    dream.step([0, 0], temperature=0.5)
    dream.edit(1, 0, 3)
    dream.reseed(8)
    dream.step([2, 1], temperature=0.5)
    recipe = dream.recipe()
    assert recipe["seeds"] == [[0, 7], [2, 8]]
    assert recipe["temperatures"] == [[0, 1.0], [1, 0.5]]
    assert recipe["actions"] == [[1, 0, 2], [2, 0, 1]]
    assert recipe["edits"] == [[2, 1, 0, 3]]
    assert (recipe["env"], recipe["checkpoint"], recipe["rows"]) == ("Catch", 100, 2)
    assert recipe["start"] == dream.start.origin


def test_vectors_of_numbers_can_be_dreamt_of() -> None:
    agent = build(small(), vector_spec())
    agent.world_model.eval()
    model = Model(agent, small(), 0)
    dream = Dream(model, make_start(model), rows=2)
    play(dream, 3)
    frames = dream.frames(dream.trail)
    assert frames.shape == (4, 2, 6)
    assert picture(frames[0, 0]).shape == (1, 64, 64)
