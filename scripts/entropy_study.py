#!/usr/bin/env python3
"""What the encoder's entropy regulariser leaves in the latents: the paper's linear form against the hinge.

    python scripts/entropy_study.py --env Krull --updates 700

The observation model alone, on frames of random play, with each form of the regulariser and with none. Prints the
decoder loss on held-out frames, beside that of always showing the mean image, and the entropy as a share of the
largest possible.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from twm.config import EnvConfig, preset, with_options
from twm.envs import make_env
from twm.nn import latents
from twm.nn.optimiser import Optimiser
from twm.types import EnvSpec
from twm.world_model.world_model import WorldModel

FORMS = (("linear", 5.0), ("hinge", 5.0), ("linear", 0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="Krull")
    parser.add_argument("--updates", type=int, default=700)
    parser.add_argument("--frames", type=int, default=32, help="observations per update")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    o = random_play(arguments.env, 1500)
    train, held_out = o[:1300], o[1350:]
    mean_image = (train.float() / 255).mean(0)
    baseline = 0.5 * (held_out.float() / 255 - mean_image).square().flatten(1).sum(1).mean()
    print(f"mean image: decoder loss {baseline:.2f}")
    for form, coefficient in FORMS:
        decoder, entropy = study(train, held_out, form, coefficient, arguments.updates, arguments.frames)
        print(f"{form:<7} α₁ = {coefficient:g}: decoder loss {decoder:.2f}, H / H_max {entropy:.3f}", flush=True)


def study(
    train: torch.Tensor, held_out: torch.Tensor, form: str, coefficient: float, updates: int, frames: int
) -> tuple[float, float]:
    torch.manual_seed(0)
    options = {"entropy_loss": form, "entropy_coef": coefficient, "latent_variables": 32, "latent_categories": 32}
    config = with_options(preset("cpu"), {f"world_model.{name}": value for name, value in options.items()})
    spec = EnvSpec("frames", (1, *train.shape[2:]), train.shape[1], ("NOOP",))
    model = WorldModel(config.world_model, spec, 0.99)
    optimiser = Optimiser(model.observation, 6e-4, 1e-6, 100.0)
    for _ in range(updates):
        model.total(model.observation_losses(train[torch.randint(len(train), (frames,))])).backward()
        optimiser.step()
    with torch.no_grad():
        decoder = model.observation_losses(held_out).decoder
        logits = model.observation.encode(model.observation.scale(held_out))
        return float(decoder), float(latents.entropy(logits).mean() / latents.max_entropy(32, 32))


def random_play(game: str, steps: int) -> torch.Tensor:
    env = make_env(game, EnvConfig(), training=True)
    rng = np.random.default_rng(0)
    o, seen = env.reset(seed=0), []
    for _ in range(steps):
        seen.append(o)
        step = env.step(int(rng.integers(env.spec.num_actions)))
        o = env.reset() if step.terminated or step.truncated else step.observation
    return torch.from_numpy(np.stack(seen))


if __name__ == "__main__":
    main()
