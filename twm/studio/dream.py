"""A dream to play in: imagined step by step, remembered, repeatable.

From a real state (with the steps before it as context) the dynamics model imagines what follows the actions of
a person or of the policy. Several rows may dream side by side from one state. Every step is kept, so one can go
back and go on from there, and every random number of step t comes from (seed, t) alone, so that the same start,
seed and actions are the same dream: that is all a link holds.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from twm.agent import Agent
from twm.config import Config
from twm.nn import latents
from twm.policy.actor_critic import sample_action
from twm.studio.inside import attention_map
from twm.studio.keyframes import Keyframes
from twm.studio.limits import MAX_STEPS, TRAIL_BYTES
from twm.studio.protocol import ProtocolError
from twm.studio.randomness import generator

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

MAX_EDITS = 500


class Model(NamedTuple):
    """What dreams are made of: the weights of one checkpoint."""

    agent: Agent
    config: Config
    step: int  # interactions after which they were saved
    updates: int | None = None  # training steps behind the pretraining; None where nobody has counted

    def fingerprint(self) -> str:
        """Tells weights apart: other runs of a game have checkpoints of the same step."""
        total = 0
        for module in (self.agent.world_model, self.agent.policy):
            for tensor in module.state_dict().values():
                total = zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes(), total)
        return f"{total:08x}"


class Start(NamedTuple):
    """The state where dreams begin, and the k steps of its episode before it."""

    z: Ints  # (k+1, V) categories; the last row is where the dream begins
    a: Ints  # (k,)
    r: Floats  # (k,) as the model sees rewards
    origin: dict[str, Any]  # how to find it again: what the page asked for


class Moment(NamedTuple):
    """Where the rows are after t steps, and the step that led there (zeros at the start)."""

    z: Ints  # (R, V) categories
    h: Tensor  # (R, D) h_{t-1}: what the transformer knew before z was drawn; zeros where nothing
    value: Floats  # (R,) the critic's opinion of z
    policy: Floats  # (R, A) the actor's probabilities in z
    a: Ints  # (R,) the action that led here,
    r: Floats  # (R,) the reward predicted for it,
    gamma: Floats  # (R,) and the discount
    attention: npt.NDArray[np.uint8]  # (R, layers, modalities, steps back), 255 = all of it
    temperature: float  # at which z was drawn


class Dream:
    """R rows from one state. ``t`` is where it stands; steps behind it are kept until another future begins."""

    def __init__(self, model: Model, start: Start, *, rows: int = 1, seed: int = 0) -> None:
        self.model, self.start, self.rows = model, start, rows
        self.t = 0
        self.seeds: list[tuple[int, int]] = [(0, seed)]
        self.edits: list[tuple[int, int, int, int]] = []
        self._world, self._policy = model.agent.world_model, model.agent.policy
        self._dynamics = self._world.dynamics
        self._history = self._dynamics.begin(rows, attention=True)
        h = self._remember(start)
        self._made = 0  # steps of the dream that the history holds
        self._expected: tuple[int, Tensor | None] = (0, None)  # a step, and the logits that its z was drawn from
        self.keyframes = Keyframes(self._dynamics, self._history)
        z = np.repeat(start.z[-1:], rows, 0)
        a = np.full(rows, start.a[-1] if len(start.a) else 0, np.int64)
        r = np.full(rows, start.r[-1] if len(start.r) else 0, np.float32)
        nothing = np.zeros((rows, *self._no_attention()), np.uint8)
        self.trail = [Moment(z, h, *self._opinions(z, h), a, r, np.ones(rows, np.float32), nothing, 0.0)]
        self.max_steps = max(1, min(MAX_STEPS, TRAIL_BYTES // self._bytes_per_step()))

    @property
    def now(self) -> Moment:
        return self.trail[self.t]

    @property
    def length(self) -> int:
        """Steps made and kept."""
        return len(self.trail) - 1

    @property
    def seed(self) -> int:
        """Of the step that comes next."""
        return next(seed for since, seed in reversed(self.seeds) if since <= self.t)

    # ----------------------------------------------------------------------------------------------
    # Dreaming

    @torch.no_grad()
    def step(
        self,
        actions: Sequence[int | None],
        *,
        temperature: float = 1.0,
        policy_temperature: float = 1.0,
        together: bool = False,
    ) -> Moment:
        """One step of every row, with the given actions, or the policy's where None.

        ``temperature`` is that of the latent states, ``policy_temperature`` that of the policy. ``together`` lets
        all rows do what the first one does.
        """
        if self.t >= self.max_steps:
            raise ProtocolError(f"a dream has at most {self.max_steps:,} steps: start another one, or go back in this")
        self._catch_up()
        before = self.now
        # Drawn whether they are used or not: the numbers behind them must not depend on who acts, and how.
        numbers = generator(self.seed, self.t)
        u_action = torch.rand(self.rows, generator=numbers)
        u_latent = torch.rand((self.rows, self._dynamics.config.latent_variables), generator=numbers).to(self._device)
        drawn = sample_action(torch.from_numpy(before.policy).log(), policy_temperature, u_action).numpy()
        a = np.array([own if given is None else given for given, own in zip(actions, drawn)], np.int64)
        a = np.full_like(a, a[0]) if together else a
        h = self._advance(before, a)
        prediction = self._dynamics.predict(h, temperature, u_latent)
        z_next = prediction.c.cpu().numpy()
        self._expected = (self.t + 1, prediction.z_logits)
        attention = attention_map(self._history.attention or [], self._dynamics.tokens_per_step, self._reach)
        r, gamma = prediction.r_hat.cpu().numpy(), prediction.gamma_hat.cpu().numpy()
        moment = Moment(z_next, h, *self._opinions(z_next, h), a, r, gamma, attention, temperature)
        self.trail.append(moment)
        self.t += 1
        self.keyframes.offer(self._made, self._history)
        return moment

    def seek(self, t: int) -> Moment:
        """Go to an earlier (or later) step that is kept."""
        if not 0 <= t <= self.length:
            raise ProtocolError(f"expected a step from 0 to {self.length}, but came {t}")
        self.t = t
        return self.now

    def reseed(self, seed: int) -> None:
        """Another future from here on."""
        self._forget_future()
        self.seeds = [(since, old) for since, old in self.seeds if since < self.t] + [(self.t, seed)]

    @torch.no_grad()
    def edit(self, row: int, variable: int, category: int) -> Moment:
        """Set one latent variable of the present state; the dream goes on from what it is then."""
        c = self._dynamics.config
        bounds = {"row": self.rows, "variable": c.latent_variables, "category": c.latent_categories}
        for (name, bound), given in zip(bounds.items(), (row, variable, category)):
            if not 0 <= given < bound:
                raise ProtocolError(f"expected a {name} from 0 to {bound - 1}, but came {given}")
        if len(self.edits) >= MAX_EDITS:
            raise ProtocolError(f"a dream takes at most {MAX_EDITS} changes of its latents: start another one")
        self._forget_future()
        z = self.now.z.copy()
        z[row, variable] = category
        value, policy = self._opinions(z, self.now.h)
        self.trail[self.t] = self.now._replace(z=z, value=value, policy=policy)
        self.edits.append((self.t, row, variable, category))
        return self.now

    def branch(self, row: int) -> Start:
        """The present state of a row as the start of other dreams: latents and context, so no past is needed."""
        k = min(self._dynamics.config.sequence_length, len(self.start.a) + self.t)
        own = min(k, self.t)  # of these steps were dreamt, the rest are the start's context
        context = slice(len(self.start.a) - (k - own), len(self.start.a))
        recent = self.trail[self.t - own : self.t + 1]
        z = np.concatenate([self.start.z[:-1][context], [moment.z[row] for moment in recent]])
        a = np.concatenate([self.start.a[context], [moment.a[row] for moment in recent[1:]]])
        r = np.concatenate([self.start.r[context], [moment.r[row] for moment in recent[1:]]])
        origin = {"kind": "latents", "z": z.tolist(), "a": a.astype(int).tolist(), "r": [float(x) for x in r]}
        return Start(z, a.astype(np.int64), r.astype(np.float32), origin)

    # ----------------------------------------------------------------------------------------------
    # Looking

    @torch.no_grad()
    def frames(self, moments: Sequence[Moment]) -> npt.NDArray[Any]:
        """(moments, R, *frame) what the rows look like: the newest frame of each decoded observation."""
        z = self._one_hot(np.concatenate([moment.z for moment in moments]))
        newest = self.model.agent.spec.frame_shape[0]
        decoded = torch.cat([self._world.decode(part)[:, -newest:] for part in z.split(64)])
        return decoded.unflatten(0, (len(moments), self.rows)).cpu().numpy()

    @torch.no_grad()
    def expected_latents(self, row: int) -> Floats:
        """(V, K) how probable the model held each category of the present state before it was drawn."""
        c, h = self._dynamics.config, self.now.h[row]
        if not h.any():  # nothing came before: what was seen is all there is
            return np.eye(c.latent_categories, dtype=np.float32)[self.now.z[row]]
        t, logits = self._expected
        newest = logits[row] if t == self.t and logits is not None else self._dynamics.next_logits(h)
        probabilities: Floats = torch.softmax(newest, -1).cpu().numpy()
        return probabilities

    def recipe(self) -> dict[str, Any]:
        """All that is needed to dream this again with the same weights."""
        made = self.trail[1:]
        temperatures = [
            (t, m.temperature) for t, m in enumerate(made) if t == 0 or m.temperature != made[t - 1].temperature
        ]
        return {
            "version": 1,
            "env": self.model.config.env,
            "checkpoint": self.model.step,
            "weights": self.model.fingerprint(),
            "start": self.start.origin,
            "rows": self.rows,
            "seeds": [list(seed) for seed in self.seeds],
            "temperatures": [list(temperature) for temperature in temperatures],
            "actions": [[int(m.a[row]) for m in made] for row in range(self.rows)],
            "edits": [list(edit) for edit in self.edits],
        }

    # ----------------------------------------------------------------------------------------------
    # Inside

    def _remember(self, start: Start) -> Tensor:
        """Let the transformer read the context; returns the hidden state after it, zeros without one."""
        h = torch.zeros(self.rows, self._dynamics.config.width, device=self._device)
        for j in range(len(start.a)):
            z = self._one_hot(np.repeat(start.z[j : j + 1], self.rows, 0))
            h = self._run(z, np.full(self.rows, start.a[j]), np.full(self.rows, start.r[j - 1] if j else 0.0))
        return h

    def _advance(self, before: Moment, a: Ints) -> Tensor:
        """Tell the transformer of one step."""
        self._made += 1
        return self._run(self._one_hot(before.z), a, before.r)

    @torch.no_grad()
    def _run(self, z: Tensor, a: Ints, r: npt.NDArray[Any]) -> Tensor:
        rewards = torch.as_tensor(r, dtype=z.dtype, device=z.device)
        same_episode = torch.zeros(self.rows, dtype=torch.bool, device=z.device)
        return self._dynamics.step(self._history, z, torch.as_tensor(a, device=z.device), rewards, same_episode)

    def _catch_up(self) -> None:
        """Bring the history to the present step: after a step back, from the nearest keyframe before it."""
        self._forget_future()
        if self._made == self.t:
            return
        self._made, self._history = self.keyframes.nearest(self.t)
        while self._made < self.t:
            self._advance(self.trail[self._made], self.trail[self._made + 1].a)

    def _forget_future(self) -> None:
        del self.trail[self.t + 1 :]
        self.edits = [edit for edit in self.edits if edit[0] <= self.t]
        self.seeds = [seed for seed in self.seeds if seed[0] <= self.t]
        self.keyframes.forget_after(self.t)

    def _opinions(self, z: Ints, h: Tensor) -> tuple[Floats, Floats]:
        with torch.no_grad():
            x = self._policy.view(self._one_hot(z), h)
            value, policy = self._policy.value(self._policy.critic(x)), torch.softmax(self._policy.actor(x), -1)
        return value.float().cpu().numpy(), policy.float().cpu().numpy()

    def _one_hot(self, z: Ints) -> Tensor:
        return latents.one_hot(torch.as_tensor(z, device=self._device), self._dynamics.config.latent_categories)

    @property
    def _device(self) -> torch.device:
        return self.model.agent.device

    @property
    def _reach(self) -> int:
        """Steps of the attention map: the present one and as many as attention reaches back."""
        return self._dynamics.config.sequence_length + 1

    def _no_attention(self) -> tuple[int, int, int]:
        return self._dynamics.config.layers, self._dynamics.tokens_per_step, self._reach

    def _bytes_per_step(self) -> int:
        moment = self.trail[0]
        arrays = [value for value in moment if isinstance(value, np.ndarray)]
        frame = int(np.prod(self.model.agent.spec.frame_shape)) * (1 if self.model.agent.spec.is_image else 4)
        # Two frames: those of a reality beside the dream, and what the decoder makes of them.
        return int(sum(array.nbytes for array in arrays) + moment.h.nbytes + 2 * frame + 1024)
