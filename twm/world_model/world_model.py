"""Observation and dynamics model together, and the update that trains both (paper, section 2.1).

    L_obs = E Σ_t  -ln p(o_t | z_t)  - α₁ H(p(z_t | o_t))  + α₂ H(p(z_t | o_t), sg p(ẑ_t | h_{t-1}))
    L_dyn = E Σ_t  H(sg p(z_{t+1} | o_{t+1}), p(ẑ_{t+1} | h_t))  - β₁ ln p(r_t | h_t)  - β₂ ln p(γ_t | h_t)

sg stops the gradient. The models share no parameters: L_obs trains the first, L_dyn the second
(``encoder_gradient`` lets L_dyn reach the encoder too, as later work does).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from twm.config import WorldModelConfig
from twm.nn import latents
from twm.nn.optimiser import Optimiser
from twm.types import Batch, EnvSpec, Starts
from twm.world_model.dynamics import DynamicsModel
from twm.world_model.observation import ObservationModel
from twm.world_model.open_loop import Choose, Context, Imagined, choice, past, roll_out

T = TypeVar("T")


@dataclass(frozen=True)
class Terms(Generic[T]):
    """The six terms of the loss. Losses and weights are both this record, so no term can lack a weight."""

    decoder: T
    entropy: T
    consistency: T
    latent: T
    reward: T
    discount: T

    def items(self) -> list[tuple[str, T]]:
        """Name and value of each, in the order above."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


class WorldModel(nn.Module):
    def __init__(self, config: WorldModelConfig, spec: EnvSpec, discount: float) -> None:
        super().__init__()
        self.config = config
        self.discount = discount
        self.observation = ObservationModel(config, spec.observation_shape)
        self.dynamics = DynamicsModel(config, spec.num_actions)
        self.weights = loss_weights(config)

    def make_optimisers(self) -> dict[str, Optimiser]:
        c = self.config
        return {
            "observation": Optimiser(self.observation, c.observation_lr, c.weight_decay, c.grad_clip),
            "dynamics": Optimiser(self.dynamics, c.dynamics_lr, c.weight_decay, c.grad_clip),
        }

    # ----------------------------------------------------------------------------------------------
    # Losses

    def losses(self, batch: Batch) -> tuple[Terms[Tensor], Starts]:
        """The terms, unweighted, each a mean over batch and steps; and the states where dreams may start."""
        logits, targets, z, (context_z, last_z), decoder = self._see(batch)
        episode = episode_labels(batch)
        seen = self._towards_encoder(z)
        history = torch.cat([context_z[:, None], seen], 1)  # (B, T+1, Z)
        r = self.dynamics.squash(batch.r)
        h = self.dynamics(history, batch.a, r, episode)  # (B, T+1, D): h_0 ... h_T
        predicted = self.dynamics.next_logits(h)  # ẑ_1 ... ẑ_{T+1}
        ended = batch.terminated | batch.truncated  # (B, T+1): what follows belongs to another episode
        consistency = _mean(self._consistency_loss(logits, predicted[:, :-1].detach()), ~ended[:, :-1])
        z_next = torch.cat([seen[:, 1:], last_z[:, None]], 1)
        dynamics = self._dynamics_terms(batch, h, r, predicted[:, 1:], targets, z_next)
        terms = Terms(decoder, self._entropy_loss(logits), consistency, *dynamics)
        return terms, _starts(batch, z.detach(), context_z, ended)

    def observation_losses(self, o: Tensor) -> Terms[Tensor]:
        """Decoder and entropy alone, on raw observations (batch, ...): pretraining of the observation model."""
        logits, _, decoder = self._reconstruct(o)
        zero = torch.zeros_like(decoder)
        return Terms(decoder, self._entropy_loss(logits), zero, zero, zero, zero)

    def dynamics_losses(self, batch: Batch) -> Terms[Tensor]:
        """The dynamics model's terms alone, on latents of an encoder that stands still: its pretraining."""
        with torch.no_grad():
            B = batch.o.shape[0]
            logits = self.observation.encode(self.observation.scale(batch.o.flatten(0, 1))).unflatten(0, (B, -1))
            z = latents.sample(logits)  # (B, T+2, Z)
        r = self.dynamics.squash(batch.r)
        h = self.dynamics(z[:, :-1], batch.a, r, episode_labels(batch))
        predicted = self.dynamics.next_logits(h[:, 1:])
        zero = torch.zeros((), device=h.device)
        return Terms(zero, zero, zero, *self._dynamics_terms(batch, h, r, predicted, logits[:, 2:], z[:, 2:]))

    def total(self, terms: Terms[Tensor]) -> Tensor:
        """Σ weight · term."""
        return torch.stack([getattr(self.weights, name) * term for name, term in terms.items()]).sum()

    def _reconstruct(self, o: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and samples of z for raw observations, and the mean decoder loss."""
        o = self.observation.scale(o)
        logits = self.observation.encode(o)  # (batch, V, K)
        z = latents.straight_through(latents.sample(logits), logits)
        return logits, z, self.observation.negative_log_likelihood(o, self.observation.decode(z)).mean()

    def _see(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
        """Encode and decode: logits of z_1..z_T, fixed targets z_2..z_{T+1}, samples of z_1..z_T and of both ends, z_0
        and z_{T+1}, and the decoder loss.

        The observations at both ends (context and what follows) carry no loss, so they take no gradient.
        """
        B = batch.o.shape[0]
        logits, z, decoder = self._reconstruct(batch.o[:, 1:-1].flatten(0, 1))
        logits, z = logits.unflatten(0, (B, -1)), z.unflatten(0, (B, -1))
        with torch.no_grad():
            edges = batch.o[:, [0, -1]].flatten(0, 1)
            edge_logits = self.observation.encode(self.observation.scale(edges)).unflatten(0, (B, 2))
            context_z, last_z = latents.sample(edge_logits).unbind(1)
        targets = torch.cat([logits[:, 1:], edge_logits[:, 1:]], 1).detach()
        return logits, targets, z, (context_z, last_z), decoder

    def _towards_encoder(self, z: Tensor) -> Tensor:
        """z with its gradient scaled by ``encoder_gradient``."""
        share = self.config.encoder_gradient
        return z.detach() if share == 0 else z * share + z.detach() * (1 - share)

    def _dynamics_terms(
        self, batch: Batch, h: Tensor, r: Tensor, predicted: Tensor, targets: Tensor, z_next: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Latent, reward and discount loss of the steps 1..T."""
        ended = (batch.terminated | batch.truncated)[:, 1:]
        gamma = torch.where(batch.terminated, 0.0, self.discount)[:, 1:]
        latent = _mean(latents.cross_entropy(targets, predicted), ~ended)
        if self.dynamics.embed_next is not None:  # what a dream puts where an episode ends and nothing follows
            z_next = torch.where(ended.unsqueeze(-1), latents.sample(predicted.detach()), z_next)
        output = self.dynamics.reward_output(h[:, 1:], z_next)
        return latent, self._reward_loss(output, r[:, 1:]), self._discount_loss(h[:, 1:], gamma)

    def _entropy_loss(self, logits: Tensor) -> Tensor:
        H = latents.entropy(logits).mean()
        if self.config.entropy_loss == "linear":
            return -H
        return F.relu(0.1 - H / latents.max_entropy(*logits.shape[-2:]))

    def _consistency_loss(self, logits: Tensor, predicted: Tensor) -> Tensor:
        """H(p(z | o), p(ẑ | h)) of the encoder relative to a fixed prediction, or with the two exchanged."""
        if self.config.consistency_loss == "encoder":
            return latents.cross_entropy(logits, predicted)
        return latents.cross_entropy(predicted, logits)

    def _reward_loss(self, output: Tensor, r: Tensor) -> Tensor:
        if self.dynamics.two_hot is not None:
            return self.dynamics.two_hot.loss(output, r).mean()
        return 0.5 * (output.squeeze(-1) - r).square().mean()  # -ln of a unit normal, without its constant

    def _discount_loss(self, h: Tensor, gamma: Tensor) -> Tensor:
        """-[γ ln γ̂ + (1 - γ) ln(1 - γ̂)]: the Bernoulli likelihood of a soft target."""
        return F.binary_cross_entropy_with_logits(self.dynamics.discount_head(h).squeeze(-1), gamma)

    # ----------------------------------------------------------------------------------------------
    # For dreams and for people

    @torch.no_grad()
    def states(self, batch: Batch, *, hidden: bool = True) -> tuple[Float[Tensor, "B T Z"], Float[Tensor, "B T D"]]:
        """z_1..z_T and h_0..h_{T-1} (zeros if not asked for): what a policy sees at each step of real sequences."""
        B = batch.o.shape[0]
        z = self.encode(batch.o[:, :-1].flatten(0, 1), temperature=1.0).unflatten(0, (B, -1))  # (B, T+1, Z)
        if not hidden:
            return z[:, 1:], z.new_zeros(B, z.shape[1] - 1, self.config.width)
        labels = episode_labels(batch)
        h = self.dynamics(z, batch.a, self.dynamics.squash(batch.r), labels)
        same = labels[:, 1:] == labels[:, :-1]  # h of another episode must not be seen
        return z[:, 1:], h[:, :-1] * same.unsqueeze(-1)

    @torch.no_grad()
    def encode(self, o: Tensor, temperature: float = 0.0) -> Float[Tensor, "batch Z"]:
        """Latent states of raw observations (uint8 pixels); temperature 0 takes the most likely categories."""
        return latents.sample(self.observation.encode(self.observation.scale(o)), temperature)

    @torch.no_grad()
    def decode(self, z: Float[Tensor, "batch Z"]) -> Tensor:
        """Observations of latent states, as raw as they came in (uint8 pixels)."""
        return self.observation.unscale(self.observation.decode(z))

    def over(self, gamma: Tensor) -> Tensor:
        """Where the model believes the episode to have ended: γ̂ nearer to 0 than to the discount."""
        return gamma < self.discount / 2

    @torch.no_grad()
    def imagine(
        self,
        o: Tensor | npt.NDArray[np.generic],
        a: Choose | Tensor | npt.ArrayLike,
        *,
        steps: int | None = None,
        past_a: Tensor | npt.ArrayLike | None = None,
        past_r: Tensor | npt.ArrayLike | None = None,
        temperature: float = 1.0,
    ) -> Imagined:
        """M dreams from raw observations ``o`` (M, *observation), which begin episodes.

        ``a`` are the actions (M, H), or a policy: a function of the step's number, z (M, Z) and the hidden state
        before it, h (M, D), for ``steps`` steps. To begin inside an episode, give k+1 observations for each dream,
        (M, k+1, *observation), and the k actions and rewards between them. Temperature 1 draws what happens, 0
        takes what is most likely.
        """
        device = self.dynamics.embed_z.weight.device
        o = torch.as_tensor(o, device=device)
        if o.ndim == len(self.observation.observation_shape) + 1:
            o = o[:, None]
        if tuple(o.shape[2:]) != self.observation.observation_shape:
            raise ValueError(
                f"expected observations (M, *{self.observation.observation_shape}), with one more axis behind M for "
                f"steps of context, but got {tuple(o.shape)}"
            )
        M, k = o.shape[0], o.shape[1] - 1
        context = Context(
            z=self.encode(o.flatten(0, 1)).unflatten(0, (M, k + 1)),
            a=past("past_a", past_a, (M, k), device).long(),
            r=past("past_r", past_r, (M, k), device).float(),
            length=torch.full((M,), k, device=device),
        )
        choose, steps = choice(a, M, steps, device)
        dream = roll_out(self.dynamics, context, steps, choose, temperature)
        decoded = self.decode(dream.z.flatten(0, 1)).unflatten(0, (M, steps + 1))
        return Imagined(decoded, dream.a, dream.r, dream.gamma, self.over(dream.gamma))


def loss_weights(config: WorldModelConfig) -> Terms[float]:
    """α₁, α₂, β₁, β₂ and the weights that the paper leaves at 1."""
    return Terms(
        decoder=1.0,
        entropy=config.entropy_coef,
        consistency=config.consistency_coef,
        latent=config.latent_coef,
        reward=config.reward_coef,
        discount=config.discount_coef,
    )


def episode_labels(batch: Batch) -> Int[Tensor, "B T"]:
    """Number of episode ends before each step: steps of one episode share a label."""
    ended = (batch.terminated | batch.truncated).long()
    return ended.cumsum(1) - ended


def _mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean over all entries, those not ``valid`` counting as 0, as a sum over valid steps would weigh them."""
    return (x * valid).mean()


def _starts(batch: Batch, z: Tensor, context_z: Tensor, ended: Tensor) -> Starts:
    """All B·T states of the batch, each with the step before it as context where that is of its episode."""
    before_z = torch.cat([context_z[:, None], z[:, :-1]], 1)
    return Starts(
        z=z.flatten(0, 1),
        context_z=before_z.flatten(0, 1),
        context_a=batch.a[:, :-1].flatten(),
        context_r=batch.r[:, :-1].flatten(),
        has_context=~ended[:, :-1].flatten(),
    )
