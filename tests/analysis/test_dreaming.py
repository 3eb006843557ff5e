"""Dreams from moments of real episodes: the same numbers as the whole sequence gives, whatever came before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import image_spec, random_z, small

from twm.agent import Agent, build
from twm.analysis import dreaming
from twm.analysis.recording import Episode
from twm.config import ConfigError


def an_agent(**options: object) -> Agent:
    torch.manual_seed(1)
    agent = build(small(**options), image_spec())
    agent.world_model.eval()
    return agent


def an_episode(steps: int = 9) -> Episode:
    rng = np.random.default_rng(0)
    o = rng.integers(256, size=(steps, 2, 16, 16), dtype=np.uint8)
    return Episode(o, rng.integers(3, size=steps), rng.normal(size=steps).astype(np.float32), True)


def test_context_of_each_start() -> None:
    """One step in front where there is one."""
    episode, z = an_episode(), random_z(small(), 9)
    context = dreaming.contexts(episode, z, [0, 1, 8])
    assert context.length.tolist() == [0, 1, 1]
    torch.testing.assert_close(context.z[:, -1], z[[0, 1, 8]])
    torch.testing.assert_close(context.z[1:, 0], z[[0, 7]])
    assert context.a[1:, 0].tolist() == episode.a[[0, 7]].tolist()
    with pytest.raises(ConfigError, match=r"begin at 0\.\.8, got"):
        dreaming.contexts(episode, z, [9])


@pytest.mark.parametrize("tokens", ["three", "one"])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_a_dream_predicts_what_the_whole_sequence_does(tokens: str, k: int) -> None:
    """Rewards and latent states of the dream, step by step, equal those of one pass over context and dream; starts
    0, 1 and 5 have 0, 1 and k real steps in front."""
    agent = an_agent(world_model__tokens=tokens)
    episode, dynamics = an_episode(), agent.world_model.dynamics
    z = dreaming.encode(agent.world_model, episode.o)
    starts = [0, 1, 5]
    context = dreaming.contexts(episode, z, starts, k)
    rollout = dreaming.dream(agent.world_model, context, 3, dreaming.recorded(episode, starts), temperature=0.0)
    for row, start in enumerate(starts):
        first = max(0, start - k)
        past = slice(first, start)
        sequence = torch.cat([z[past], rollout.z[row, :3]])[None]
        actions = torch.as_tensor(episode.a[first : start + 3])[None]
        rewards = torch.cat([torch.as_tensor(episode.r[past]), rollout.r[row]])[None]
        with torch.no_grad():
            h = dynamics(sequence, actions, rewards, torch.zeros_like(actions))
            prediction = dynamics.predict(h[0, -3:])
        torch.testing.assert_close(prediction.r_hat, rollout.r[row], atol=1e-5, rtol=1e-4)
        most_likely = prediction.z_logits.argmax(-1)
        assert torch.equal(rollout.z[row, 1:].unflatten(-1, (3, 4)).argmax(-1), most_likely)


def test_recorded_actions_go_on_with_the_last_one() -> None:
    episode = an_episode()
    choose = dreaming.recorded(episode, [0, 7])
    z = torch.zeros(2, 12)
    assert choose(1, z, z).tolist() == episode.a[[1, 8]].tolist()
    assert choose(5, z, z).tolist() == episode.a[[5, 8]].tolist()


@pytest.mark.parametrize("view", ["z", "zh"])
def test_the_policy_acts_in_the_dream(view: str) -> None:
    """Also one that looks at h."""
    agent = an_agent(policy__input=view)
    episode = an_episode()
    context = dreaming.contexts(episode, dreaming.encode(agent.world_model, episode.o), [0, 4])
    rollout = dreaming.dream(agent.world_model, context, 6, dreaming.by_policy(agent))
    assert rollout.z.shape == (2, 7, 12)
    assert ((rollout.a >= 0) & (rollout.a < 3)).all()
    torch.testing.assert_close(rollout.z.unflatten(-1, (3, 4)).sum(-1), torch.ones(2, 7, 3))


def test_a_dream_lasts_up_to_the_step_that_ends_it() -> None:
    """discount 0.99: over where γ̂ < 0.495."""
    agent = an_agent()
    gamma = torch.tensor([[0.9, 0.4, 0.9, 0.1], [0.99, 0.99, 0.99, 0.99], [0.2, 0.9, 0.9, 0.9], [0.9, 0.9, 0.5, 0.49]])
    assert dreaming.lengths(agent.world_model, gamma) == [2, 4, 1, 4]


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, episode = an_agent(), an_episode()
    z = dreaming.encode(agent.world_model, episode.o)
    decoded = dreaming.decode(agent.world_model, z)
    monkeypatch.setattr(dreaming, "CHUNK", 2)
    torch.testing.assert_close(dreaming.encode(agent.world_model, episode.o), z)
    np.testing.assert_array_equal(dreaming.decode(agent.world_model, z), decoded)
    assert decoded.shape == episode.o.shape
