"""The dynamics model: from latent states, actions and rewards to what comes next (paper, section 2.1).

    h_t = f(z_{t-ℓ:t}, a_{t-ℓ:t}, r_{t-ℓ:t-1})         aggregation: a causally masked Transformer-XL
    r̂_t, γ̂_t, ẑ_{t+1} ~ p(· | h_t)                     predictors: multilayer perceptrons on h_t

With three tokens a step the transformer reads z_0 a_0 r_0 z_1 a_1 r_1 ... z_T a_T, and h_t is its output
at a_t. With one token a step (STORM), z_t, a_t and r_{t-1} are added up into it. By option (DreamerV3) the
reward predictor also sees z_{t+1}.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from twm.config import WorldModelConfig
from twm.nn import latents
from twm.nn.mlp import MLP
from twm.nn.transformer_xl import Memory, TransformerXL
from twm.nn.two_hot import TwoHot, symlog
from twm.types import Prediction


@dataclass
class History:
    """What a running sequence remembers: the memory of the transformer, and the labels of its rows."""

    memory: Memory | None  # None: the vanilla transformer, which keeps the inputs and starts over each time
    episode: Tensor  # (M,) counts the restarts of each row
    previous: Tensor  # (M,) episode of the last step, to which its reward belongs
    step: int = 0
    inputs: tuple[Tensor, ...] = ()  # vanilla only: z (M, t, Z), a (M, t), r (M, t), episode (M, t)
    attention: list[Tensor] | None = None  # of the last step, layer by layer, where asked for


class DynamicsModel(nn.Module):
    def __init__(self, config: WorldModelConfig, num_actions: int) -> None:
        super().__init__()
        c = self.config = config
        Z = c.latent_variables * c.latent_categories
        self.embed_z = latents.OneHotLinear(c.latent_variables, c.latent_categories, c.width)
        self.embed_a = nn.Embedding(num_actions, c.width)
        self.embed_r = nn.Linear(1, c.width) if c.rewards_in_input else None
        self.transformer = TransformerXL(c.width, c.layers, c.heads, c.feedforward, c.dropout, c.norm)
        self.two_hot = TwoHot() if c.reward_head == "two-hot" else None

        def head(units: int, outputs: int) -> MLP:
            return MLP(c.width, units, c.head_layers, outputs, dropout=c.dropout, activate_input=True)

        self.latent_head = head(c.latent_units, Z)
        self.reward_head = head(c.reward_units, self.two_hot.bins if self.two_hot else 1)
        self.discount_head = head(c.discount_units, 1)
        self.embed_next: latents.OneHotLinear | None = None
        if c.reward_input == "next":
            self.embed_next = latents.OneHotLinear(c.latent_variables, c.latent_categories, c.width)
        nn.init.constant_(self.discount_head.output.bias, 0.99)
        if self.two_hot:  # an untrained head must not promise rewards to the policy
            nn.init.zeros_(self.reward_head.output.weight)
            nn.init.zeros_(self.reward_head.output.bias)

    # ----------------------------------------------------------------------------------------------
    # Tokens

    @property
    def tokens_per_step(self) -> int:
        if self.config.tokens == "one":
            return 1
        return 3 if self.embed_r is not None else 2

    def squash(self, r: Tensor) -> Tensor:
        """Rewards as the model sees and predicts them."""
        return torch.tanh(r) if self.config.reward_transform == "tanh" else r

    def _embed(self, z: Tensor, a: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Embeddings (..., D) of the three modalities: linear (of a one-hot action: a table), with SiLU by option."""
        e_z, e_r = self.embed_z(z), None
        if self.embed_r is not None:
            # Two-hot rewards may be large, and a linear layer is not made for thousands.
            e_r = self.embed_r((r if self.two_hot is None else symlog(r)).unsqueeze(-1))
        if self.config.embedding == "silu":
            e_z, e_r = F.silu(e_z), None if e_r is None else F.silu(e_r)
        return e_z, self.embed_a(a), e_r

    # ----------------------------------------------------------------------------------------------
    # Whole sequences

    def forward(
        self,
        z: Float[Tensor, "B T Z"] | Int[Tensor, "B T V"],
        a: Int[Tensor, "B T"],
        r: Float[Tensor, "B T"],
        episode: Int[Tensor, "B T"],
        weights: list[Tensor] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Hidden states h of every step. ``episode`` labels the steps: attention stays within a label."""
        T = z.shape[1]
        step = torch.arange(T, device=z.device)
        if self.config.tokens == "one":
            e_z, e_a, e_r = self._embed(z, a, _previous_rewards(r, episode))
            tokens = e_z + e_a if e_r is None else e_z + e_a + e_r  # (B, T, D)
        else:
            parts = [e for e in self._embed(z, a, r) if e is not None]
            n = len(parts)
            tokens = torch.stack(parts, 2).flatten(1, 2)  # (B, nT, D): z0 a0 r0 z1 ...
            episode, step = (x.repeat_interleave(n, -1) for x in (episode, step))
            if n == 3:  # the last reward is not part of the input
                tokens, episode, step = tokens[:, :-1], episode[:, :-1], step[:-1]
        allowed = self.allowed(episode, step, episode, step)
        h: Tensor = self.transformer(tokens, allowed, spacing=self.tokens_per_step, weights=weights)
        return h

    def allowed(
        self,
        query_episode: Int[Tensor, "B T"],
        query_step: Int[Tensor, " T"],
        key_episode: Int[Tensor, "B keys"],
        key_step: Int[Tensor, " keys"],
    ) -> Bool[Tensor, "B T keys"]:
        """Who attends to whom: same episode, not in the future, at most ℓ steps back.

        The T queries are the last T of the keys, so causality is a matter of their order.
        """
        T, keys = query_step.shape[0], key_step.shape[0]
        causal = torch.ones((T, keys), dtype=torch.bool, device=key_step.device).tril_(keys - T)
        near = query_step[:, None] - key_step[None, :] <= self.config.sequence_length
        return (query_episode[:, :, None] == key_episode[:, None, :]) & (causal & near)

    # ----------------------------------------------------------------------------------------------
    # Step by step

    @torch.no_grad()
    def begin(self, rows: int, steps: int | None = None, *, attention: bool = False) -> History:
        """An empty history for ``rows`` sequences; ``steps`` to come, if known, sets the room aside."""
        reach = (self.config.sequence_length + 2) * self.tokens_per_step
        room = 2 * reach if steps is None else min(2 * reach, (steps + 1) * self.tokens_per_step)
        memory = Memory(self.transformer, rows, reach, room, in_c=not attention) if self.config.memory else None
        device = self.embed_z.weight.device
        zero = torch.zeros(rows, dtype=torch.long, device=device)
        return History(memory, zero, zero, attention=[] if attention else None)

    @torch.no_grad()
    def step(
        self,
        history: History,
        z: Float[Tensor, "M Z"] | Int[Tensor, "M V"],
        a: Int[Tensor, " M"],
        r: Float[Tensor, " M"],
        restart: Bool[Tensor, " M"],
    ) -> Float[Tensor, "M D"]:
        """h after acting with a in z, where r was the reward of the step before.

        Rows in ``restart`` begin a new episode with z: they forget what they saw, r included.
        """
        history.previous, history.episode = history.episode, history.episode + restart.long()
        if history.attention is not None:
            history.attention = []
        if history.memory is None:
            h = self._step_vanilla(history, z, a, r)
        else:
            h = self._step_cached(history, history.memory, z, a, r, restart)
        history.step += 1
        return h

    def _step_cached(
        self, history: History, memory: Memory, z: Tensor, a: Tensor, r: Tensor, restart: Tensor
    ) -> Tensor:
        t = history.step
        if self.config.tokens == "one":
            e_z, e_a, e_r = self._embed(z, a, r.masked_fill(restart | (t == 0), 0.0))
            tokens = (e_z + e_a if e_r is None else e_z + e_a + e_r).unsqueeze(1)
            episode, steps = history.episode[:, None], [t]
        else:
            e_z, e_a, e_r = self._embed(z, a, r)
            tokens = torch.stack([e_z, e_a], 1)  # (M, 2, D)
            episode, steps = history.episode[:, None].expand(-1, 2), [t, t]
            if e_r is not None and t > 0:  # the reward of the step before is news too
                tokens = torch.cat([e_r.unsqueeze(1), tokens], 1)  # (M, 3, D)
                episode, steps = torch.cat([history.previous[:, None], episode], 1), [t - 1, t, t]
        step = torch.tensor(steps, device=z.device)
        start = memory.extend(episode, step)
        n = memory.length
        allowed = self.allowed(episode, step, memory.episode[:, :n], memory.step[:n])
        h: Tensor = self.transformer(
            tokens, allowed, spacing=tokens.shape[1], memory=memory, start=start, weights=history.attention
        )
        return h[:, -1]

    def _step_vanilla(self, history: History, z: Tensor, a: Tensor, r: Tensor) -> Tensor:
        """The whole window again, as a transformer without memory must."""
        new: tuple[Tensor, ...] = (z[:, None], a[:, None], torch.zeros_like(r)[:, None], history.episode[:, None])
        if history.inputs:
            history.inputs[2][:, -1] = r
            window = self.config.sequence_length + 1
            new = tuple(torch.cat([x, y], 1)[:, -window:] for x, y in zip(history.inputs, new))
        history.inputs = new
        h: Tensor = self(*new, weights=history.attention)
        return h[:, -1]

    # ----------------------------------------------------------------------------------------------
    # Predictors

    def heads(self) -> tuple[MLP, MLP, MLP]:
        return self.latent_head, self.reward_head, self.discount_head

    def predict(
        self, h: Float[Tensor, "*batch D"], temperature: float = 1.0, u: Float[Tensor, "*batch V"] | None = None
    ) -> Prediction:
        """What follows h: a next state, drawn as in :func:`twm.nn.latents.draw`, with the reward on the way to it."""
        z_logits = self.next_logits(h)
        c = latents.draw(z_logits, temperature, u)
        return Prediction(
            z_logits,
            c,
            self.reward_mean(self.reward_output(h, c)),
            torch.sigmoid(self.discount_head(h).squeeze(-1)),
        )

    def next_logits(self, h: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch V K"]:
        """Of p(ẑ_{t+1} | h_t)."""
        c = self.config
        logits = self.latent_head(h).unflatten(-1, (c.latent_variables, c.latent_categories))
        return latents.mix_uniform(logits, c.unimix)

    def reward_output(
        self, h: Float[Tensor, "*batch D"], z_next: Float[Tensor, "*batch Z"] | Int[Tensor, "*batch V"]
    ) -> Tensor:
        """The reward predictor's raw output for the step from h to ``z_next``."""
        output: Tensor = self.reward_head(h if self.embed_next is None else h + self.embed_next(z_next))
        return output

    def reward_mean(self, output: Tensor) -> Tensor:
        return output.squeeze(-1) if self.two_hot is None else self.two_hot.mean(output)


def _previous_rewards(r: Tensor, episode: Tensor) -> Tensor:
    """r_{t-1} at step t; 0 where t begins a sequence or an episode."""
    same = episode[:, 1:] == episode[:, :-1]
    return F.pad(r[:, :-1] * same, (1, 0))
