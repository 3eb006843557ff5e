"""The agent: encoder and actor only, both temperatures, memory for a policy on [z, h], the table of parameters."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from small import image_spec, small, vector_spec
from torch import nn

from twm.agent import Agent, build, parameter_counts
from twm.config import Config
from twm.types import EnvSpec

PONG = EnvSpec("Pong", (1, 64, 64), 4, ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"))


def make(spec: EnvSpec | None = None, **options: Any) -> Agent:
    """Untrained, but with opinions: the actor's output weights are not small."""
    torch.manual_seed(0)
    agent = build(small(**options), vector_spec() if spec is None else spec)
    agent.world_model.eval()
    nn.init.normal_(agent.policy.actor.output.weight)
    return agent


def test_the_papers_table_of_parameters() -> None:
    """Counted on the modules really built, with Pong's 6 actions."""
    counts = parameter_counts(Config(), PONG)
    assert counts == {"observation": 8_234_532, "dynamics": 10_779_394, "actor": 1_315_846, "critic": 1_313_281}
    assert round(sum(counts.values()) / 1e6, 1) == 21.6
    encoder = build(Config(), PONG).world_model.observation.encoder
    assert sum(p.numel() for p in encoder.parameters()) + counts["actor"] == 4_442_838  # 4.4M at inference time


def test_encoder_and_actor_are_all_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make(image_spec())

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("only encoder and actor may run")

    for part in (agent.world_model.dynamics, agent.world_model.observation.decoder, agent.policy.critic):
        monkeypatch.setattr(part, "forward", forbidden)
    for name in ("begin", "step", "predict"):
        monkeypatch.setattr(agent.world_model.dynamics, name, forbidden)
    agent.act(np.zeros((2, 16, 16), np.uint8))
    agent.act(np.zeros((5, 2, 16, 16), np.uint8), temperature=0.0)
    assert agent.state() == {}


def test_one_observation_or_many() -> None:
    agent = make()
    observations = np.random.default_rng(0).normal(scale=20, size=(30, 6)).astype(np.float32)
    many = agent.act(observations, temperature=0.0)
    assert isinstance(many, np.ndarray)
    assert many.shape == (30,)
    single = [agent.act(o, temperature=0.0) for o in observations]
    assert all(type(a) is int for a in single)
    assert single == many.tolist()
    assert len(set(single)) > 1


def test_temperature_zero_is_the_most_likely_action() -> None:
    agent = make()
    o = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    z = agent.world_model.encode(torch.from_numpy(o))
    expected = agent.policy.actor(z).argmax(-1)
    for _ in range(3):
        assert agent.act(o, temperature=0.0).tolist() == expected.tolist()


@pytest.mark.parametrize("temperature", [1.0, 3.0, math.inf])
def test_temperatures_sample_the_policy(temperature: float) -> None:
    """The encoder takes the most likely latents, so all chance is the policy's. Chi-squared, 2 degrees: 13.82."""
    torch.manual_seed(1)
    agent = make()
    o = np.ones(6, np.float32)
    z = agent.world_model.encode(torch.from_numpy(o)[None])
    with torch.no_grad():
        expected = 20_000 * torch.softmax(agent.policy.actor(z)[0] / temperature, -1)
    actions = agent.act(np.tile(o, (20_000, 1)), temperature=temperature)
    counts = torch.bincount(torch.from_numpy(actions), minlength=3)
    assert float(((counts - expected) ** 2 / expected).sum()) < 13.82


def test_wrong_shapes_are_refused() -> None:
    agent = make(image_spec())
    message = "Picture has shape (2, 16, 16) (a batch one more axis in front), but this has (16, 16)"
    with pytest.raises(ValueError, match=re.escape(message)):
        agent.act(np.zeros((16, 16), np.uint8))
    with pytest.raises(ValueError, match=re.escape("but this has (3, 1, 16, 16)")):
        agent.act(np.zeros((3, 1, 16, 16), np.uint8))


# --------------------------------------------------------------------------------------------------
# A policy on [z, h] remembers

STEPS, ROWS = 25, 4
MEMORIES = [
    {},
    {"world_model__tokens": "one"},
    {"world_model__reward_transform": "tanh"},
    {"world_model__memory": False, "world_model__sequence_length": STEPS},
]


class Life:
    """Observations, rewards and restarts of several rows, to act on again and again."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.o = rng.normal(size=(STEPS, ROWS, 6)).astype(np.float32)
        self.reward = rng.normal(size=(STEPS, ROWS))
        self.restart = rng.random((STEPS, ROWS)) < np.array([0.0, 0.1, 0.3, 1.0])
        self.restart[0] = True

    def act(self, agent: Agent, first: int = 0, last: int = STEPS, temperature: float = 0.0) -> list[list[int]]:
        return [
            agent.act(self.o[t], temperature=temperature, reward=self.reward[t], restart=self.restart[t]).tolist()
            for t in range(first, last)
        ]


@pytest.mark.parametrize("options", MEMORIES)
def test_memory_equals_the_whole_sequence(options: dict[str, Any]) -> None:
    """π([z_t, h_{t-1}]) with h of one pass over all that happened; 0 where an episode begins."""
    agent = make(policy__input="zh", **{"world_model__sequence_length": 3, **options})
    life, seen = Life(), []
    hook = agent.policy.actor.register_forward_hook(lambda _, __, logits: seen.append(logits))
    actions = torch.tensor(life.act(agent)).T  # (rows, steps)
    hook.remove()
    dynamics = agent.world_model.dynamics
    with torch.no_grad():
        z = torch.stack([agent.world_model.encode(torch.from_numpy(o)) for o in life.o], 1)
        r = torch.from_numpy(life.reward).float().T.roll(-1, 1)  # at step t the reward of t - 1 is passed
        restart = torch.from_numpy(life.restart).T
        h = dynamics(z, actions, dynamics.squash(r), restart.long().cumsum(1))
        before = torch.cat([torch.zeros(ROWS, 1, 16), h[:, :-1]], 1).masked_fill(restart[..., None], 0.0)
        expected = agent.policy.actor(agent.policy.view(z, before))
    torch.testing.assert_close(torch.stack(seen, 1), expected, rtol=0, atol=1e-4)
    assert torch.equal(actions, expected.argmax(-1))
    torch.testing.assert_close(agent.state()["h"], h[:, -1], rtol=0, atol=1e-5)


def test_the_reward_before_matters() -> None:
    agents = [make(policy__input="zh") for _ in range(2)]
    o = np.ones(6, np.float32)
    for agent, reward in zip(agents, (0.0, 3.0)):
        agent.act(o, restart=True, temperature=0.0)
        agent.act(o, reward=reward, temperature=0.0)
    assert not torch.equal(agents[0].state()["h"], agents[1].state()["h"])


@pytest.mark.parametrize("options", MEMORIES)
@pytest.mark.parametrize("stop", [1, 4, 19])
def test_state_goes_on_where_it_stopped(options: dict[str, Any], stop: int) -> None:
    """Sampled actions, the same seed: a resumed agent continues bit for bit."""
    options = {"policy__input": "zh", "world_model__sequence_length": 3, **options}
    life, agent, resumed = Life(), make(**options), make(**options)
    life.act(agent, 0, stop, temperature=1.0)
    saved = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in agent.state().items()}
    resumed.load_state(saved)
    continued = []
    for one in (agent, resumed):
        torch.manual_seed(5)
        continued.append(life.act(one, stop, STEPS, temperature=1.0))
    assert continued[0] == continued[1]
    assert torch.equal(agent.state()["h"], resumed.state()["h"])


@pytest.mark.parametrize("options", MEMORIES)
def test_state_goes_on_after_the_weights_have_changed(options: dict[str, Any]) -> None:
    """As in training: the agent that went on and the one that was loaded know the same weights."""
    options = {"policy__input": "zh", "world_model__sequence_length": 3, **options}
    life, agent, resumed = Life(), make(**options), make(**options)
    life.act(agent, 0, 4)
    with torch.no_grad():
        for one in (agent, resumed):
            for p in one.world_model.dynamics.parameters():
                p.mul_(1.5)
    agent.refresh()
    resumed.load_state(agent.state())
    assert life.act(agent, 4, STEPS) == life.act(resumed, 4, STEPS)
    assert torch.equal(agent.state()["h"], resumed.state()["h"])


def test_state_is_small_whole_tensors() -> None:
    """Only what is remembered, not the room set aside; contiguous, as files want it."""
    agent = make(policy__input="zh")
    agent.act(np.ones(6, np.float32), restart=True)
    memory = agent.state()["memory"]
    assert memory["k"].shape == (2, 2, 1, 2, 8)  # layers, heads, rows, tokens z and a, width of a head
    assert all(x.is_contiguous() for x in memory.values())


def test_forgetting() -> None:
    agent = make(policy__input="zh")
    life = Life()
    before = life.act(agent, 0, 5)
    agent.forget()
    assert agent.state() == {}
    assert life.act(agent, 0, 5) == before
    agent.load_state({})
    assert agent.state() == {}


def test_another_number_of_rows_begins_anew() -> None:
    agent = make(policy__input="zh")
    agent.act(np.ones((4, 6), np.float32))
    agent.act(np.ones((2, 6), np.float32))
    assert agent.state()["h"].shape == (2, 16)
    assert agent.state()["step"] == 1
