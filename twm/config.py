"""Every default in one place: frozen dataclasses and the three presets built from them.

The defaults of the dataclasses are the paper's hyperparameter table (appendix, "Hyperparameters used
in our experiments"), so ``Config()`` *is* the ``paper`` preset. ``cpu`` and ``tiny`` replace what they
must. Attribute docstrings become the command line's help; the symbol in brackets is the paper's.

This file imports nothing but the standard library: the command line reads it before torch is loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

Preset = Literal["paper", "cpu", "tiny"]
Precision = Literal["float32", "tf32", "bf16"]


class ConfigError(ValueError):
    """A value that cannot work: what was expected, what came, and what to do."""


@dataclass(frozen=True)
class EnvConfig:
    """How the world is seen. Ignored by environments they do not apply to."""

    size: int = 64
    """Side of the square frame, pixels."""
    gray: bool = True
    """Gray frames (one channel) instead of RGB (three)."""
    stack: int = 4
    """Frames stacked into one observation o."""
    frame_skip: int = 4
    """Atari: emulator frames per interaction."""
    noop_max: int = 30
    """Atari: at most this many no-ops after a reset, drawn uniformly from 1 up; 0 for none."""
    end_on_life_loss: bool = True
    """Atari: a lost life ends the episode for learning (never in evaluation)."""
    max_steps: int = 27_000
    """Interactions after which an episode is truncated (27,000 x frame skip 4 = 108K frames)."""


@dataclass(frozen=True)
class ReplayConfig:
    """Balanced sampling of experience (paper, section 2.3)."""

    temperature: float = 20.0
    """Temperature of the softmax over minus the visit counts [τ]; inf is uniform."""


@dataclass(frozen=True)
class WorldModelConfig:
    """Observation model (o ↔ z) and dynamics model (z, a, r → ẑ, r̂, γ̂)."""

    batch_size: int = 100
    """Sequences per update [N]."""
    sequence_length: int = 16
    """Steps per sequence, and how far back attention reaches [ℓ]."""

    # Observation model
    encoder: Literal["conv", "patch", "places"] = "conv"
    """conv: the paper's four convolutions of stride 2. patch: 4x4 patches first, an order of magnitude cheaper. places:
    the same, and each of 4x4 places has latent variables of its own."""
    channels: int = 48
    """Channels of the encoder's first layer; doubled at each further one."""
    encoder_units: int = 512
    """Width of the fully connected layers: the encoder's (conv, patch), the decoder's (patch, places), or both (vector
    observations)."""
    encoder_layers: int = 2
    """Fully connected hidden layers after the convolutions (conv, patch), or in all (vector observations)."""
    latent_variables: int = 32
    """Categorical variables in a latent state z."""
    latent_categories: int = 32
    """Categories of each variable."""

    # Dynamics model
    tokens: Literal["three", "one"] = "three"
    """three: z, a, r are tokens of their own (the paper). one: merged into one token a step (STORM)."""
    embedding: Literal["linear", "silu"] = "linear"
    """Embeddings of z and r: linear (the paper), or with SiLU behind, what the authors' code does."""
    rewards_in_input: bool = True
    """Feed the rewards back into the transformer; False is the paper's ablation."""
    memory: bool = True
    """Keep keys and values of past steps (Transformer-XL); False recomputes the window (vanilla)."""
    layers: int = 10
    """Transformer layers."""
    width: int = 256
    """Transformer embedding size."""
    heads: int = 4
    """Attention heads; each width / heads wide."""
    feedforward: int = 1024
    """Hidden units of the transformer's feedforward blocks."""
    norm: Literal["post", "pre"] = "post"
    """Layer norm after (the paper) or before each block."""
    dropout: float = 0.1
    """Dropout probability in transformer and heads."""
    head_layers: int = 4
    """Hidden layers of each predictor."""
    latent_units: int = 512
    """Hidden units of the latent state predictor."""
    reward_units: int = 256
    """Hidden units of the reward predictor."""
    discount_units: int = 256
    """Hidden units of the discount predictor."""
    reward_head: Literal["normal", "two-hot"] = "normal"
    """normal: unit normal around the mean (the paper). two-hot: classes on a symlog grid (DreamerV3)."""
    reward_input: Literal["h", "next"] = "h"
    """What the reward predictor sees. h: h_t (the paper). next: h_t and the state z_{t+1} that the step led to, as in
    DreamerV3: a hit is easier to recognise than to foresee."""
    reward_transform: Literal["none", "tanh"] = "none"
    """Squash rewards before the model sees and predicts them; tanh is what the authors' code does."""
    unimix: float = 0.0
    """Share of the uniform distribution mixed into encoder and latent predictor (DreamerV3: 0.01)."""

    # Loss weights
    entropy_coef: float = 5.0
    """Weight of the encoder's entropy regulariser [α₁]."""
    entropy_loss: Literal["linear", "hinge"] = "hinge"
    """linear: -α₁ H, the paper's equation, which with its α₁ = 5 empties the latents (docs/departures.md). hinge:
    α₁ max(0, 0.1 - H/H_max), what the authors' code does."""
    consistency_coef: float = 0.01
    """Weight of the consistency loss, which keeps the encoder close to the predictor [α₂]."""
    consistency_loss: Literal["encoder", "predictor"] = "encoder"
    """Whose probabilities weigh the other's logarithms: H(p_enc, p_dyn) (the paper), or H(p_dyn, p_enc), what the
    authors' code does. The gradient goes to the encoder in both."""
    latent_coef: float = 1.0
    """Weight of the latent state predictor's cross-entropy (1 in the paper)."""
    reward_coef: float = 10.0
    """Weight of the reward predictor's loss [β₁]."""
    discount_coef: float = 50.0
    """Weight of the discount predictor's loss [β₂]."""
    encoder_gradient: float = 0.0
    """Share of the dynamics losses' gradient that reaches the encoder (0 in the paper, 1 in DreamerV3 and STORM)."""

    # Optimisers
    observation_lr: float = 1e-4
    """Learning rate of the observation model."""
    dynamics_lr: float = 1e-4
    """Learning rate of the dynamics model."""
    weight_decay: float = 1e-6
    """Weight decay of both models."""
    grad_clip: float = 100.0
    """Largest gradient norm, each model on its own."""


@dataclass(frozen=True)
class PolicyConfig:
    """Actor and critic, trained in imagination (paper, section 2.2)."""

    batch_size: int = 400
    """Dreams per update [M]."""
    horizon: int = 15
    """Imagined steps per dream [H]."""
    input: Literal["z", "zh"] = "z"
    """What actor and critic see: the latent state z, or z and the transformer's hidden state h."""
    units: int = 512
    """Hidden units of actor and critic."""
    layers: int = 4
    """Hidden layers of actor and critic."""
    norm: bool = False
    """Layer norm in actor and critic."""
    discount: float = 0.99
    """Discount factor [γ]."""
    gae_lambda: float = 0.95
    """Generalised advantage estimation [λ]."""
    entropy_coef: float = 0.01
    """Weight of the thresholded entropy loss [η]."""
    entropy_threshold: float = 0.1
    """Share of the largest entropy below which the loss sets in [Γ]; 1 disables the threshold."""
    end_threshold: float = 0.1
    """Cumulative discount below which a dream counts as ended; 0 lets it run."""
    advantage_scale: Literal["none", "std", "percentile"] = "none"
    """Divide advantages by their standard deviation, or by the running 5-95 % range of returns (DreamerV3)."""
    critic_head: Literal["scalar", "two-hot"] = "scalar"
    """scalar: squared error (the paper). two-hot: classes on a symlog grid (DreamerV3)."""
    slow_critic: float = 0.0
    """Regularise the critic towards a moving average of itself with this rate (DreamerV3: 0.02); 0 for none."""
    actor_lr: float = 1e-4
    """Learning rate of the actor."""
    critic_lr: float = 1e-5
    """Learning rate of the critic."""
    weight_decay: float = 1e-6
    """Weight decay of both networks."""
    grad_clip: float = 1.0
    """Largest gradient norm, each network on its own."""


@dataclass(frozen=True)
class TrainConfig:
    """Budgets and intervals."""

    interactions: int = 100_000
    """Steps taken in the real environment, prefill included."""
    prefill: int = 5_000
    """Of these, steps with a random policy before any training."""
    samples: float = 1e9
    """Training budget: an update costs N·ℓ + M·H samples. Sets how many updates an interaction buys."""
    pretrain_samples: float = 50e6
    """Part of the budget spent on the prefill, before the main loop."""
    pretrain_observation: float = 0.6
    """Share of the pretraining budget for the observation model."""
    pretrain_dynamics: float = 0.3
    """Share for the dynamics model; the rest goes to actor and critic."""
    pretrain_splits: int = 1
    """Optimiser steps into which a batch is split while the observation model is pretrained."""
    eval_every: int = 5_000
    """Interactions between evaluations; 0 for none."""
    eval_episodes: int = 10
    """Episodes of each evaluation during training."""
    final_episodes: int = 100
    """Episodes of the evaluation at the end."""
    eval_noop_max: int = 30
    """Atari: no-ops after a reset in evaluation."""
    log_every: int = 100
    """Interactions between records in metrics.jsonl."""
    checkpoint_every: int = 1_000
    """Interactions between checkpoints."""


@dataclass(frozen=True)
class Config:
    """One run, completely: with the same code, machine and this, every number comes out again."""

    env: str = "Breakout"
    """Atari game, Catch (built in), Gymnasium id, or module:EnvClass."""
    seed: int = 0
    """Seed of every random number in the run."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto takes CUDA where there is one."""
    precision: Precision = "float32"
    """float32; tf32 matrix products (CUDA); bf16 autocast."""
    compile: bool = False
    """torch.compile for the models' forward passes."""
    threads: int = 0
    """CPU cores for training and evaluation; 0 takes all. Part of what makes a run repeat bit for bit."""
    env_options: EnvConfig = field(default_factory=EnvConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    world_model: WorldModelConfig = field(default_factory=WorldModelConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


def samples_per_update(config: Config) -> int:
    """What one update costs of the budget: N·ℓ + M·H (7,600 in the paper)."""
    world_model, policy = config.world_model, config.policy
    return world_model.batch_size * world_model.sequence_length + policy.batch_size * policy.horizon


# --------------------------------------------------------------------------------------------------
# Presets


def preset(name: Preset) -> Config:
    """The configuration behind a preset's name."""
    if name == "paper":
        return Config()
    if name == "cpu":
        return _cpu()
    if name == "tiny":
        return _tiny()
    raise ConfigError(
        f"unknown preset {name!r}: expected one of {', '.join(get_args(Preset))}{_nearest(name, get_args(Preset))}"
    )


def _cpu() -> Config:
    """Real Atari on two cores, meant to end within two hours: smaller networks, later ideas (docs/lab-book.md)."""
    return Config(
        env_options=EnvConfig(stack=2),
        replay=ReplayConfig(temperature=2.0),
        world_model=WorldModelConfig(
            batch_size=16,
            encoder="places",
            channels=24,
            encoder_units=256,
            latent_variables=64,
            latent_categories=16,
            tokens="one",
            embedding="silu",
            rewards_in_input=False,
            layers=3,
            width=128,
            feedforward=512,
            norm="pre",
            dropout=0.0,
            head_layers=1,
            latent_units=256,
            reward_units=256,
            discount_units=256,
            reward_head="two-hot",
            reward_input="next",
            reward_transform="tanh",
            reward_coef=5.0,
            discount_coef=5.0,
            unimix=0.01,
            observation_lr=1e-3,
            dynamics_lr=4e-4,
        ),
        policy=PolicyConfig(
            batch_size=128,
            units=256,
            layers=2,
            norm=True,
            entropy_coef=0.005,
            entropy_threshold=1.0,  # none: where dreams tell no action from another, the policy must not settle
            advantage_scale="percentile",
            critic_head="two-hot",
            slow_critic=0.02,
            actor_lr=2e-4,
            critic_lr=3e-4,
        ),
        train=TrainConfig(
            interactions=25_000,
            prefill=2_500,
            samples=25e6,
            pretrain_samples=450e3,
            pretrain_splits=8,
            eval_every=5_000,
            eval_episodes=10,
            checkpoint_every=500,
        ),
    )


def _tiny() -> Config:
    """The toy environment in minutes: demo and tests."""
    return Config(
        env="Catch",
        threads=1,  # its matrices are too small to share
        env_options=EnvConfig(size=16, stack=1),
        replay=ReplayConfig(temperature=5.0),
        world_model=WorldModelConfig(
            batch_size=16,
            sequence_length=8,
            encoder="patch",
            channels=16,
            encoder_units=64,
            encoder_layers=1,
            latent_variables=16,
            latent_categories=16,
            embedding="silu",
            layers=2,
            width=64,
            feedforward=128,
            norm="pre",
            dropout=0.0,
            head_layers=1,
            latent_units=128,
            reward_units=64,
            discount_units=64,
            reward_input="next",  # a catch is seen in the picture after it, and then much alike in all columns
            encoder_gradient=1.0,
            observation_lr=1e-3,
            dynamics_lr=1e-3,
        ),
        policy=PolicyConfig(
            batch_size=64,
            horizon=10,
            units=128,
            layers=2,
            norm=True,
            entropy_coef=0.05,
            entropy_threshold=0.2,
            actor_lr=3e-4,  # slower than the critic: a policy that settles before the values are known stays there
            critic_lr=3e-3,
        ),
        train=TrainConfig(
            interactions=4_000,
            prefill=2_000,  # enough for random play to have caught a ball in every column
            samples=4e6,
            pretrain_samples=1e6,
            eval_every=1_000,
            eval_episodes=10,
            log_every=100,
            checkpoint_every=500,
        ),
    )


# --------------------------------------------------------------------------------------------------
# To and from files


def to_dict(config: Config) -> dict[str, Any]:
    """Nested plain values for JSON; infinity, which JSON lacks, becomes the text "inf"."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return "inf" if value == math.inf else value

    nested: dict[str, Any] = plain(dataclasses.asdict(config))
    return nested


def from_dict(data: Mapping[str, Any], base: Config | None = None) -> Config:
    """The reverse of :func:`to_dict`; what ``data`` leaves out is taken from ``base`` (the paper's values)."""
    return _build(Config() if base is None else base, data, "")


def with_options(config: Config, options: Mapping[str, Any]) -> Config:
    """``config`` with some options replaced by their paths: ``{"replay.temperature": 5.0}``."""
    nested: dict[str, Any] = {}
    for path, value in options.items():
        *groups, name = path.replace("-", "_").split(".")
        level = nested
        for group in groups:
            level = level.setdefault(group, {})
        level[name] = value
    return from_dict(nested, config)


def flatten(config: Config) -> dict[str, Any]:
    """Every option by its path, e.g. ``{"env": "Pong", "replay.temperature": 20.0, ...}``."""
    flat: dict[str, Any] = {}

    def walk(value: Any, path: str) -> None:
        for item in dataclasses.fields(value):
            inner, inner_path = getattr(value, item.name), f"{path}{item.name}"
            if dataclasses.is_dataclass(inner):
                walk(inner, inner_path + ".")
            else:
                flat[inner_path] = inner

    walk(config, "")
    return flat


def load(path: Path) -> Config:
    """Read a ``config.json``."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"the configuration {path} must be a JSON object, but holds a {type(data).__name__}")
    return from_dict(data)


def _build(base: Any, data: Mapping[str, Any], path: str) -> Any:
    """``base`` with the values of ``data``, each checked against the declared type of its field."""
    hints = get_type_hints(type(base))
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in hints:
            raise ConfigError(f"unknown option {path}{name}{_nearest(name, hints)}")
        inner = getattr(base, name)
        if dataclasses.is_dataclass(inner):
            if not isinstance(value, Mapping):
                raise ConfigError(f"option {path}{name} is a group of options, but came as {value!r}")
            values[name] = _build(inner, value, f"{path}{name}.")
        else:
            values[name] = _parse(value, hints[name], f"{path}{name}")
    return replace(base, **values)


def _parse(value: Any, kind: Any, path: str) -> Any:
    """One value as its declared type; texts are accepted for numbers and truth values (``--set path=value``)."""
    error = ConfigError(f"option {path} must be {_type_name(kind)}, but came as {value!r}")
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise error
        return value
    try:
        if kind is bool:
            if isinstance(value, str) and value.lower() in ("true", "false"):
                return value.lower() == "true"
            if isinstance(value, bool):
                return value
        elif kind is int and not isinstance(value, bool):
            number = float(value)
            if number == int(number):
                return int(number)
        elif kind is float and not isinstance(value, bool):
            return float(value)
        elif kind is str and isinstance(value, str):
            return value
    except (TypeError, ValueError, OverflowError):
        pass
    raise error


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]


def _nearest(name: str, choices: Any) -> str:
    close = difflib.get_close_matches(name, list(choices), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


# --------------------------------------------------------------------------------------------------
# Checks


def validate(config: Config) -> None:
    """Refuse what cannot work, before anything is created. Game names are checked where environments are made."""
    world_model, train, env = config.world_model, config.train, config.env_options
    for path, value in flatten(config).items():
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"option {path} is not a number; give it a value")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value < 0:
            raise ConfigError(f"option {path} must not be negative, but is {value}")
    _at_least_one(
        config,
        "env_options.size env_options.stack env_options.frame_skip env_options.max_steps "
        "world_model.batch_size world_model.sequence_length world_model.channels world_model.encoder_units "
        "world_model.latent_variables world_model.layers world_model.width world_model.heads "
        "world_model.feedforward world_model.latent_units world_model.reward_units world_model.discount_units "
        "policy.batch_size policy.horizon policy.units train.interactions train.prefill "
        "train.pretrain_splits train.eval_episodes train.final_episodes train.log_every train.checkpoint_every",
    )
    if world_model.latent_categories < 2:
        raise ConfigError(f"world_model.latent_categories must be at least 2, but is {world_model.latent_categories}")
    if world_model.width % world_model.heads:
        raise ConfigError(
            f"world_model.width ({world_model.width}) must be a multiple of world_model.heads ({world_model.heads}): "
            "each head takes an equal part"
        )
    if world_model.width % 2:
        raise ConfigError(f"world_model.width must be even (sine and cosine positions), but is {world_model.width}")
    if config.replay.temperature == 0:
        raise ConfigError("replay.temperature must be above 0 (inf for uniform sampling), but is 0")
    for path in ("policy.discount", "policy.gae_lambda", "policy.entropy_threshold", "policy.end_threshold"):
        _in_unit_interval(config, path)
    for path in ("world_model.unimix", "world_model.encoder_gradient", "policy.slow_critic"):
        _in_unit_interval(config, path)
    if world_model.dropout >= 1:
        raise ConfigError(f"world_model.dropout must be below 1, but is {world_model.dropout}")
    shares = train.pretrain_observation + train.pretrain_dynamics
    if shares > 1 + 1e-9:
        raise ConfigError(
            "train.pretrain_observation + train.pretrain_dynamics must be at most 1 (the rest goes to actor and "
            f"critic), but is {shares:g}"
        )
    if train.pretrain_samples > train.samples:
        raise ConfigError(
            f"train.pretrain_samples ({train.pretrain_samples:g}) is part of train.samples ({train.samples:g}) "
            "and cannot exceed it"
        )
    if train.prefill > train.interactions:
        raise ConfigError(f"train.prefill ({train.prefill}) cannot exceed train.interactions ({train.interactions})")
    starts = train.prefill - world_model.sequence_length - 1
    if starts < world_model.batch_size:
        raise ConfigError(
            f"a batch needs {world_model.batch_size} different sequences of {world_model.sequence_length} steps, "
            f"but a prefill of {train.prefill} steps has {max(starts, 0)}: raise --train.prefill or lower "
            "--world-model.batch-size"
        )
    if env.size < 8:
        raise ConfigError(f"env_options.size must be at least 8 pixels, but is {env.size}")


def _at_least_one(config: Config, paths: str) -> None:
    flat = flatten(config)
    for path in paths.split():
        if flat[path] < 1:
            raise ConfigError(f"{path} must be at least 1, but is {flat[path]}")


def _in_unit_interval(config: Config, path: str) -> None:
    value = flatten(config)[path]
    if not 0 <= value <= 1:
        raise ConfigError(f"{path} must lie between 0 and 1, but is {value}")
