"""Everything that learns: models, optimisers, and one update of each kind. Knows no environment and no files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from twm.agent import build
from twm.config import Config
from twm.imagination import imagine
from twm.train.partners import Facts, Team, processes
from twm.types import Batch, Dream, EnvSpec, Starts, Transitions
from twm.world_model.world_model import WorldModel


class Learner:
    def __init__(self, config: Config, spec: EnvSpec, device: torch.device) -> None:
        self.config, self.spec = config, spec
        self.device = device
        self.team: Team | None = None
        self.agent = build(config, spec)
        self.world_model = self.agent.world_model.to(device).eval()
        self.policy = self.agent.policy.to(device).eval()
        self.optimisers = {**self.world_model.make_optimisers(), **self.policy.make_optimisers()}
        # The losses are most of an update; dreams run step by step with changing shapes, which compiles badly.
        self._losses = torch.compile(self.world_model.losses) if config.compile else self.world_model.losses

    def batch(self, sequences: Transitions) -> Batch:
        """Numpy sequences as tensors on the device."""
        return Batch(*(torch.from_numpy(x).to(self.device, non_blocking=True) for x in sequences))

    # ----------------------------------------------------------------------------------------------
    # Updates

    def update(self, batch: Batch) -> Facts:
        """World model, then policy on dreams from its states (paper, Algorithm 1)."""
        facts, starts = self.update_world_model(batch)
        return facts | self.update_policy(self.dream(starts))

    def update_world_model(self, batch: Batch) -> tuple[Facts, Starts]:
        """Both models on one batch (paper, Algorithm 1, left); the states are those of the learner's own rows."""
        rows = len(batch.a)
        with self.together() as team:
            own = team.split(batch)
            team.begin("world_model")
            facts, starts = self.world_model_gradients(own, len(own.a) / rows)
            facts = team.finish(facts, [self.world_model], rows)
            for name in ("observation", "dynamics"):
                facts[f"grad/{name}"] = self.optimisers[name].step()
        self.agent.refresh()
        return facts, starts

    def dream(self, starts: Starts) -> Dream:
        """As many and as long as the policy's update asks for; partners keep theirs."""
        M = self.config.policy.batch_size
        with self.together() as team:
            team.begin("dream")
            dream = self.dream_from(starts, team.own(M))
            team.finish({}, [], M)
        return dream

    def update_policy(self, dream: Dream) -> Facts:
        """Actor and critic on one dream, which carries their forward passes (paper, Algorithm 1, right)."""
        M = self.config.policy.batch_size
        with self.together() as team:
            team.begin("policy")
            facts = self.policy_gradients(dream, team.own(M) / M)
            facts = team.finish(facts, [self.policy.actor, self.policy.critic], M)
            for name in ("actor", "critic"):
                facts[f"grad/{name}"] = self.optimisers[name].step()
        self.policy.after_update(facts["policy/return_range"])
        return facts

    # ----------------------------------------------------------------------------------------------
    # What each process does for its share of the rows

    def world_model_gradients(self, batch: Batch, share: float) -> tuple[Facts, Starts]:
        """Gradients of ``share`` times the loss."""
        with training(self.world_model), self._autocast():
            terms, starts = self._losses(batch)
            total = self.world_model.total(terms)
        (total * share).backward()
        return {f"loss/{name}": term.detach() for name, term in terms.items()}, starts

    def dream_from(self, starts: Starts, M: int) -> Dream:
        with self._autocast():
            return imagine(self.world_model, self.policy, starts, M, self.config.policy.horizon)

    def policy_gradients(self, dream: Dream, share: float) -> Facts:
        """Gradients of ``share`` times the loss."""
        with self._autocast():
            losses, seen = self.policy.losses(dream)
            total = self.policy.total(losses)
        (total * share).backward()
        facts = {f"loss/policy_{name}": term.detach() for name, term in losses._asdict().items()}
        facts |= {f"policy/{name}": value for name, value in seen._asdict().items()}
        return facts | {"dream/reward": dream.r.mean(), "dream/ended": dream.ended.float().mean()}

    @contextmanager
    def together(self) -> Iterator[Team]:
        """The partners, started when they are first needed; inside, each process has its share of the threads.

        Optimisers and acting gain little by more, and lose much where something else runs on the machine: at each
        operation one thread waits for the others.
        """
        threads = torch.get_num_threads()
        if self.team is None:
            count = processes(self.config, self.device)
            self.team = Team(self.config, self.spec, (self.world_model, self.policy), count)
            self._threads = max(threads // count, 1)
        torch.set_num_threads(self._threads)
        try:
            yield self.team
        finally:
            torch.set_num_threads(threads)

    def close(self) -> None:
        """Let the partners go; they would come again when needed."""
        if self.team is not None:
            self.team.close()
            self.team = None

    # ----------------------------------------------------------------------------------------------
    # Pretraining: each part alone

    def pretrain_observation(self, batch: Batch) -> Facts:
        """One batch in ``pretrain_splits`` optimiser steps, its observations in random order."""
        o = batch.o[:, 1:-1].flatten(0, 1)
        parts = torch.randperm(len(o), device=self.device).chunk(self.config.train.pretrain_splits)
        return _mean([self._pretrain_observation(o[part]) for part in parts])

    def _pretrain_observation(self, o: Tensor) -> Facts:
        with training(self.world_model), self._autocast():
            terms = self.world_model.observation_losses(o)
            total = self.world_model.total(terms)
        total.backward()
        facts = {"loss/decoder": terms.decoder.detach(), "loss/entropy": terms.entropy.detach()}
        facts["grad/observation"] = self.optimisers["observation"].step()
        return facts

    def pretrain_dynamics(self, batch: Batch) -> Facts:
        with training(self.world_model), self._autocast():
            terms = self.world_model.dynamics_losses(batch)
            total = self.world_model.total(terms)
        total.backward()
        facts = {f"loss/{name}": getattr(terms, name).detach() for name in ("latent", "reward", "discount")}
        facts["grad/dynamics"] = self.optimisers["dynamics"].step()
        return facts

    def pretrain_policy(self, batch: Batch, returns: Tensor) -> Facts:
        """``returns`` (B, T): what the random policy really earned from each step on."""
        with self._autocast():
            z, h = self.world_model.states(batch, hidden=self.config.policy.input == "zh")
            losses = self.policy.pretraining_losses(self.policy.view(z, h).flatten(0, 1), returns.flatten())
            total = self.policy.total(losses)
        total.backward()
        facts = {"loss/policy_critic": losses.critic.detach(), "loss/policy_entropy": losses.entropy.detach()}
        for name in ("actor", "critic"):
            facts[f"grad/{name}"] = self.optimisers[name].step()
        self.policy.after_update()
        return facts

    def _autocast(self) -> Any:
        if self.config.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    # ----------------------------------------------------------------------------------------------
    # State

    def state(self) -> dict[str, Any]:
        return {
            "world_model": dict(self.world_model.state_dict()),
            "policy": dict(self.policy.state_dict()),
            "optimisers": {name: optimiser.state() for name, optimiser in self.optimisers.items()},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.world_model.load_state_dict(state["world_model"])
        self.policy.load_state_dict(state["policy"])
        for name, optimiser in self.optimisers.items():
            optimiser.load_state(state["optimisers"].get(name, {}))


@contextmanager
def training(model: WorldModel) -> Iterator[None]:
    """Dropout on inside, off outside: dreams and acting use the whole network."""
    model.train()
    try:
        yield
    finally:
        model.eval()


def _mean(reports: list[Facts]) -> Facts:
    return {name: torch.stack([report[name] for report in reports]).mean() for name in reports[0]}
