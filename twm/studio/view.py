"""What the page is shown of a run and of a dream."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from twm.replay import Replay
from twm.studio.dream import Dream, Model
from twm.studio.inside import MODALITIES, numbers, picture
from twm.studio.keys import key_bindings
from twm.studio.limits import MAX_ROWS, MAX_WARM_UP
from twm.studio.protocol import pack
from twm.studio.reality import Reality


class Source(Protocol):
    """Where a session finds models and real states: a run directory."""

    name: str

    def model(self) -> Model | None: ...
    def replay(self) -> Replay | None: ...


def introduction(source: Source) -> dict[str, Any]:
    """The run, its game and the shapes of its model; not ``ready`` before the first checkpoint."""
    model, replay = source.model(), source.replay()
    if model is None:
        return {"run": source.name, "ready": False}
    spec, c = model.agent.spec, model.config.world_model
    tokens = model.agent.world_model.dynamics.tokens_per_step
    return {
        "run": source.name,
        "ready": True,
        "env": spec.name,
        "actions": list(spec.actions),
        "keys": key_bindings(spec.actions),
        "latents": [c.latent_variables, c.latent_categories],
        "attention": {"layers": c.layers, "modalities": MODALITIES[tokens], "steps": c.sequence_length + 1},
        "discount": model.config.policy.discount,
        "squashed": c.reward_transform == "tanh",
        "checkpoint": model.step,
        "replay": 0 if replay is None else len(replay),
        "max_rows": MAX_ROWS,
        "max_warm_up": MAX_WARM_UP,
    }


def moment(header: dict[str, Any], dream: Dream, reality: Reality | None, focus: int, unsent: int) -> bytes:
    """The packet of the present step: pictures, the numbers of all steps from ``unsent`` on, the inside of one row."""
    new, now = dream.trail[unsent:], dream.now
    header = {
        **header,
        "type": "moment",
        "t": dream.t,
        "length": dream.length,
        "max_steps": dream.max_steps,
        "rows": dream.rows,
        "focus": focus,
        "start": {key: value for key, value in dream.start.origin.items() if key not in ("z", "a", "r")},
        "seed": dream.seed,
        "checkpoint": dream.model.step,
        "untrained": dream.model.updates == 0,  # it pretrains: pictures first, then what follows, then the policy
        "first": unsent,
        "steps": {
            "a": [m.a.tolist() for m in new],
            "r": [numbers(m.r) for m in new],
            "gamma": [numbers(m.gamma) for m in new],
            "value": [numbers(m.value) for m in new],
        },
        "policy": [numbers(row) for row in now.policy],
        "latents": now.z[focus].tolist(),
    }
    parts = {
        "frames": np.stack([picture(frame) for frame in dream.frames([now])[0]]),
        "expected": (dream.expected_latents(focus) * 255).round().astype(np.uint8),
        "attention": now.attention[focus],
    }
    if reality is not None:
        header["reality"] = reality.facts(unsent, dream.t)
        parts["real"] = picture(reality.frames[dream.t])
    return pack(header, parts)
