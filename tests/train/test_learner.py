"""Updates: every option learns, each part alone, the same again after a restart."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from small import image_spec, random_batch, small, vector_spec
from torch import Tensor

from twm.config import Config, preset, with_options
from twm.train.learner import Learner, training
from twm.types import Batch, Dream, EnvSpec, Starts, Transitions

ENDS = {"terminated": [(0, 2), (1, 0)], "truncated": [(1, 3), (2, 0)]}


def make(config: Config, spec: EnvSpec | None = None) -> Learner:
    torch.manual_seed(0)
    return Learner(config, vector_spec() if spec is None else spec, torch.device("cpu"))


def experience(config: Config, spec: EnvSpec | None = None, seed: int = 0) -> Batch:
    return random_batch(config, vector_spec() if spec is None else spec, seed=seed, **ENDS)


def weights(learner: Learner) -> dict[str, Tensor]:
    """All parameters of each part in one vector."""
    parts = {
        "observation": learner.world_model.observation,
        "dynamics": learner.world_model.dynamics,
        "actor": learner.policy.actor,
        "critic": learner.policy.critic,
    }
    return {name: torch.cat([p.detach().flatten() for p in part.parameters()]) for name, part in parts.items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    assert all(torch.isfinite(x).all() for x in after.values())
    return {name for name in before if not torch.equal(before[name], after[name])}


# --------------------------------------------------------------------------------------------------
# Every option


def choices() -> list[dict[str, Any]]:
    """Every value of every option that is a choice or a switch, read off the configuration itself."""
    found: list[dict[str, Any]] = []
    for group in ("world_model", "policy"):
        part = getattr(Config(), group)
        hints = get_type_hints(type(part))
        for field in dataclasses.fields(part):
            hint = hints[field.name]
            values = get_args(hint) if get_origin(hint) is Literal else (True, False) if hint is bool else ()
            found += [{f"{group}__{field.name}": value} for value in values]
    return found


NUMBERS: list[dict[str, Any]] = [
    {"world_model__unimix": 0.01},
    {"world_model__encoder_gradient": 1.0},
    {"world_model__dropout": 0.1},
    {"world_model__entropy_coef": 0.0},
    {"policy__slow_critic": 0.02},
    {"policy__slow_critic": 0.02, "policy__critic_head": "two-hot", "policy__input": "zh"},
    {"policy__end_threshold": 0.0},
    {"world_model__memory": False, "world_model__tokens": "one", "policy__input": "zh"},
]


def name_of(options: dict[str, Any]) -> str:
    return ",".join(f"{name.split('__')[1]}={value}" for name, value in options.items())


def test_choices_are_found() -> None:
    found = [name_of(options) for options in choices()]
    assert {"encoder=conv", "tokens=one", "memory=False", "input=zh", "advantage_scale=percentile"} <= set(found)
    assert len(found) >= 29


@pytest.mark.parametrize("options", choices() + NUMBERS, ids=name_of)
def test_every_option_learns(options: dict[str, Any]) -> None:
    """Pretraining and two full updates on pictures: everything finite, every part moves."""
    config, spec = small(**options), image_spec()
    learner, batch = make(config, spec), experience(config, spec)
    for part, update in (
        ({"observation"}, learner.pretrain_observation),
        ({"dynamics"}, learner.pretrain_dynamics),
        ({"actor", "critic"}, lambda b: learner.pretrain_policy(b, torch.randn(4, 5))),
        ({"observation", "dynamics", "actor", "critic"}, learner.update),
        ({"observation", "dynamics", "actor", "critic"}, learner.update),
    ):
        before = weights(learner)
        facts = update(batch)
        assert all(torch.isfinite(x).all() and x.ndim == 0 and not x.requires_grad for x in facts.values())
        assert changed(before, weights(learner)) == part


@pytest.mark.parametrize("name", ["paper", "cpu", "tiny"])
def test_presets_learn(name: str) -> None:
    """Each preset's options on small pictures, with a batch of two."""
    config = with_options(
        preset(name),  # type: ignore[arg-type]
        {
            "world_model.batch_size": 2,
            "policy.batch_size": 3,
            "world_model.channels": 4,
            "world_model.latent_units": 32,
            "world_model.encoder_units": 32,
            "world_model.layers": 2,
            "policy.units": 16,
        },
    )
    learner, batch = make(config, image_spec()), random_batch(config, image_spec(), terminated=[(1, 3)])
    before = weights(learner)
    learner.update(batch)
    assert changed(before, weights(learner)) == {"observation", "dynamics", "actor", "critic"}


def test_bf16_learns_without_losing_precision_where_it_matters() -> None:
    """Autocast on the CPU: finite, weights and what is sampled from or summed up stay float32."""
    config = small(precision="bf16", world_model__reward_head="two-hot", policy__critic_head="two-hot")
    learner, batch = make(config, image_spec()), experience(config, image_spec())
    seen: list[torch.dtype] = []
    dream = learner.dream

    def watched(starts: Starts) -> Dream:
        result = dream(starts)
        seen.extend(x.dtype for x in (result.logits, result.values, result.r, result.gamma))
        return result

    learner.dream = watched  # type: ignore[method-assign]
    for _ in range(3):
        facts = learner.update(batch)
        assert all(torch.isfinite(x).all() for x in facts.values())
    learner.pretrain_observation(batch)
    learner.pretrain_dynamics(batch)
    learner.pretrain_policy(batch, torch.randn(4, 5))
    assert set(seen) == {torch.float32}
    assert all(p.dtype == torch.float32 for p in learner.world_model.parameters())
    exact = make(dataclasses.replace(config, precision="float32"), image_spec())
    torch.manual_seed(1)
    expected = exact.pretrain_observation(batch)["loss/decoder"]
    torch.manual_seed(1)
    rough = make(config, image_spec()).pretrain_observation(batch)["loss/decoder"]
    assert rough.item() == pytest.approx(expected.item(), rel=0.02)


def test_compiling_takes_the_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda function: compiled.append(function) or function)
    config = small(compile=True)
    learner = make(config)
    assert compiled == [learner.world_model.losses]
    learner.update(experience(config))


COMPILED_UPDATE = """
import torch
from small import random_batch, small, vector_spec
from twm.train.learner import Learner
for compiled in (False, True):
    torch.manual_seed(0)
    config = small(compile=compiled)
    learner = Learner(config, vector_spec(), torch.device("cpu"))
    facts, _ = learner.update_world_model(random_batch(config, vector_spec(), terminated=[(0, 2)]))
    print(*(facts[f"loss/{name}"].item() for name in ("entropy", "consistency", "latent", "reward", "discount")))
"""


@pytest.mark.slow
def test_compiled_updates_give_nearly_the_same_losses() -> None:
    """In a process of its own, without shape checks. Latents are drawn anew, so only nearly."""
    command = [sys.executable, "-c", COMPILED_UPDATE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=True)
    eager, compiled = ([float(x) for x in line.split()] for line in done.stdout.splitlines())
    assert compiled == pytest.approx(eager, rel=0.05)


# --------------------------------------------------------------------------------------------------
# What an update is


def test_facts_have_names() -> None:
    config = small()
    facts = make(config).update(experience(config))
    assert set(facts) == {
        *(f"loss/{name}" for name in ("decoder", "entropy", "consistency", "latent", "reward", "discount")),
        *(f"loss/policy_{name}" for name in ("actor", "entropy", "critic")),
        *(f"policy/{name}" for name in ("entropy", "value", "dream_return", "advantage_scale", "return_range")),
        *(f"grad/{name}" for name in ("observation", "dynamics", "actor", "critic")),
        "dream/reward",
        "dream/ended",
    }


def test_losses_fall() -> None:
    """Thirty updates on one batch: what is learned of the world gets better, term by term."""
    config = small(
        world_model__observation_lr=1e-3, world_model__dynamics_lr=1e-3, world_model__entropy_coef=0.0, seed=0
    )
    learner, batch = make(config), experience(config)
    history = [learner.update_world_model(batch)[0] for _ in range(60)]
    for name in ("decoder", "latent", "reward", "discount"):
        first, last = (torch.stack([f[f"loss/{name}"] for f in part]).mean() for part in (history[:5], history[-5:]))
        assert last < first, name


def test_gradients_are_clipped_by_each_models_norm() -> None:
    """The reported norm is that before clipping; weights hardly move when it is clipped to nearly nothing."""
    config = small(world_model__grad_clip=1e-12, world_model__weight_decay=0.0)
    learner = make(config)
    before = weights(learner)
    facts, _ = learner.update_world_model(experience(config))
    assert facts["grad/dynamics"] > 0.1
    moved = (weights(learner)["dynamics"] - before["dynamics"]).abs().max()
    assert moved < 1e-4 * 1e-6  # lr · g / (g + eps) with g at most 1e-12


def test_dropout_is_on_only_while_the_world_model_learns() -> None:
    learner = make(small(world_model__dropout=0.5))
    assert not learner.world_model.training
    with training(learner.world_model):
        assert learner.world_model.training
    assert not learner.world_model.training
    with pytest.raises(RuntimeError), training(learner.world_model):
        raise RuntimeError
    assert not learner.world_model.training


def test_numpy_sequences_become_a_batch() -> None:
    learner = make(small())
    sequences = Transitions(
        np.zeros((4, 7, 6), np.float32),
        np.arange(24).reshape(4, 6),
        np.ones((4, 6), np.float32),
        np.zeros((4, 6), bool),
        np.ones((4, 6), bool),
    )
    batch = learner.batch(sequences)
    assert batch.a.tolist() == sequences.a.tolist()
    assert [x.dtype for x in batch] == [torch.float32, torch.int64, torch.float32, torch.bool, torch.bool]


def test_the_same_seed_gives_the_same_update() -> None:
    config = small(world_model__dropout=0.1)
    results = []
    for _ in range(2):
        learner = make(config)
        torch.manual_seed(7)
        facts = learner.update(experience(config))
        results.append((weights(learner), facts))
    assert changed(results[0][0], results[1][0]) == set()
    assert all(torch.equal(results[0][1][name], results[1][1][name]) for name in results[0][1])


@pytest.mark.parametrize(
    "options", [{}, {"policy__slow_critic": 0.1, "policy__advantage_scale": "percentile", "world_model__dropout": 0.1}]
)
def test_state_goes_on_where_it_stopped(options: dict[str, Any]) -> None:
    """Two updates, save, load into a fresh learner, two more: bit for bit those of one that was not interrupted."""
    config = small(**options)
    one = make(config)
    for seed in range(2):
        one.update(experience(config, seed=seed))
    state = {name: dict(part) for name, part in one.state().items()}
    torch.manual_seed(99)
    other = Learner(config, vector_spec(), torch.device("cpu"))
    other.load_state(state)
    for learner in (one, other):
        torch.manual_seed(5)
        for seed in range(2, 4):
            learner.update(experience(config, seed=seed))
    assert changed(weights(one), weights(other)) == set()
    assert torch.equal(one.policy.return_range, other.policy.return_range)
    for name, optimiser in one.optimisers.items():
        again = other.optimisers[name].state()
        for index, slot in optimiser.state().items():
            assert all(torch.equal(slot[key], again[index][key]) for key in slot)
