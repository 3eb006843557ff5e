"""PPO, an algorithm that knows nothing of world models, learns in the dream of a run and is tested in the real world.

    python examples/ppo_in_a_dream.py RUN [STEPS]

It never touches the real environment while it learns: its episodes are those of twm.DreamEnv.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import twm
from twm.config import Config, load
from twm.envs import make_env

ENVS, LENGTH, EPOCHS, MINIBATCHES = 8, 64, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, LEARNING_RATE = 0.97, 0.95, 0.2, 0.01, 1e-3


class Policy(nn.Module):
    """Pixels or numbers to action probabilities and a value."""

    def __init__(self, inputs: int, actions: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.body = nn.Sequential(nn.Linear(inputs, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.actor, self.critic = nn.Linear(128, actions), nn.Linear(128, 1)

    def forward(self, o: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        x = self.body(o.flatten(1) / self.scale)
        return Categorical(logits=self.actor(x)), self.critic(x).squeeze(-1)


def collect(envs: list[twm.DreamEnv], policy: Policy, o: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """LENGTH steps in each dream: observations, actions, log-probabilities, advantages, returns; and where they are."""
    steps = []
    for _ in range(LENGTH):
        with torch.no_grad():
            pi, value = policy(o)
        a = pi.sample()
        results = [env.step(np.int64(int(action))) for env, action in zip(envs, a)]
        r = torch.tensor([result[1] for result in results])
        terminated = torch.tensor([result[2] for result in results])
        over = torch.tensor([result[2] or result[3] for result in results])
        seen = torch.as_tensor(np.stack([result[0] for result in results]), dtype=torch.float32)
        with torch.no_grad():
            following = policy(seen)[1] * ~terminated  # a cut-off dream goes on unseen, an ended one is worth nothing
        steps.append((o, a, pi.log_prob(a), value, r, following, over))
        fresh = [env.reset()[0] if ended else last.numpy() for env, ended, last in zip(envs, over, seen)]
        o = torch.as_tensor(np.stack(fresh), dtype=torch.float32)
    os, actions, log_pi, values, r, following, over = (torch.stack(column) for column in zip(*steps))
    advantages, running = torch.zeros_like(r), torch.zeros(len(envs))
    for t in reversed(range(LENGTH)):
        running = r[t] + GAMMA * following[t] - values[t] + GAMMA * LAMBDA * running * ~over[t]
        advantages[t] = running
    return [x.flatten(0, 1) for x in (os, actions, log_pi, advantages, advantages + values)], o


def improve(policy: Policy, optimiser: torch.optim.Optimizer, batch: list[torch.Tensor]) -> None:
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(batch[0])).chunk(MINIBATCHES):
            o, a, log_pi, advantage, target = (x[rows] for x in batch)
            pi, value = policy(o)
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            ratio = (pi.log_prob(a) - log_pi).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            loss = -gain + 0.5 * (value - target).square().mean() - ENTROPY * pi.entropy().mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimiser.step()


def real_score(policy: Policy, config: Config, episodes: int = 50) -> float:
    """Mean score of whole games in the real environment."""
    env, scores = make_env(config.env, config.env_options, training=False), []
    for seed in range(episodes):
        o, score, over = env.reset(seed=seed), 0.0, False
        while not over:
            with torch.no_grad():
                a = policy(torch.as_tensor(o[None], dtype=torch.float32))[0].sample()
            step = env.step(int(a))
            o, score, over = step.observation, score + step.reward, step.game_over
        scores.append(score)
    return float(np.mean(scores))


def main(run: Path, steps: int = 30_000) -> tuple[float, float]:
    """Real scores before and after learning in the dream."""
    torch.manual_seed(0)
    config = load(run / "config.json")
    envs = [twm.DreamEnv(run, device="cpu") for _ in range(ENVS)]
    o = torch.as_tensor(np.stack([env.reset(seed=i)[0] for i, env in enumerate(envs)]), dtype=torch.float32)
    policy = Policy(o[0].numel(), int(envs[0].action_space.n), 255 if o.ndim == 4 else 1)
    optimiser = torch.optim.Adam(policy.parameters(), LEARNING_RATE)
    before = real_score(policy, config)
    print(f"before: {before:g} in the real {config.env}", flush=True)
    for update in range(1, steps // (ENVS * LENGTH) + 1):
        batch, o = collect(envs, policy, o)
        improve(policy, optimiser, batch)
        if update % 10 == 0:
            print(f"{update * ENVS * LENGTH:,} dreamt steps: {real_score(policy, config):g}", flush=True)
    return before, real_score(policy, config)


if __name__ == "__main__":
    print(f"after: {main(Path(sys.argv[1]), *map(int, sys.argv[2:]))[1]:g}")
