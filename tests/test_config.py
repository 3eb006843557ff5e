"""The configuration: the paper's table, checks with their texts, files."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from twm.config import (
    Config,
    ConfigError,
    flatten,
    from_dict,
    load,
    preset,
    samples_per_update,
    to_dict,
    validate,
    with_options,
)

# The paper's table "Hyperparameters used in our experiments", line by line, as published.
PAPER = {
    "replay.temperature": 20,
    "policy.discount": 0.99,
    "policy.gae_lambda": 0.95,
    "world_model.batch_size": 100,
    "world_model.sequence_length": 16,
    "policy.batch_size": 400,
    "policy.horizon": 15,
    "world_model.entropy_coef": 5.0,
    "world_model.consistency_coef": 0.01,
    "world_model.reward_coef": 10.0,
    "world_model.discount_coef": 50.0,
    "policy.entropy_coef": 0.01,
    "policy.entropy_threshold": 0.1,
    "train.interactions": 100_000,
    "env_options.frame_skip": 4,
    "env_options.size": 64,
    "env_options.gray": True,
    "env_options.stack": 4,
    "env_options.end_on_life_loss": True,
    "env_options.max_steps": 108_000 // 4,
    "env_options.noop_max": 30,
    "train.eval_noop_max": 30,
    "world_model.observation_lr": 0.0001,
    "world_model.dynamics_lr": 0.0001,
    "policy.actor_lr": 0.0001,
    "policy.critic_lr": 0.00001,
    "world_model.width": 256,
    "world_model.layers": 10,
    "world_model.heads": 4,
    "world_model.feedforward": 1024,
    "world_model.head_layers": 4,
    "world_model.latent_units": 512,
    "world_model.reward_units": 256,
    "world_model.discount_units": 256,
    "policy.layers": 4,
    "policy.units": 512,
}

# What the paper's text and appendix say beside the table, and every later idea switched off.
PAPER_TEXT = {
    "world_model.encoder": "conv",
    "world_model.channels": 48,
    "world_model.encoder_units": 512,
    "world_model.latent_variables": 32,
    "world_model.latent_categories": 32,
    "world_model.tokens": "three",
    "world_model.rewards_in_input": True,
    "world_model.memory": True,
    "world_model.norm": "post",
    "world_model.dropout": 0.1,
    "world_model.reward_head": "normal",
    "world_model.reward_transform": "none",
    "world_model.reward_input": "h",
    "world_model.unimix": 0,
    "world_model.entropy_loss": "hinge",  # not the paper's equation: docs/departures.md
    "world_model.latent_coef": 1,
    "world_model.encoder_gradient": 0,
    "world_model.weight_decay": 1e-6,
    "world_model.grad_clip": 100,
    "policy.input": "z",
    "policy.norm": False,
    "policy.end_threshold": 0.1,
    "policy.advantage_scale": "none",
    "policy.critic_head": "scalar",
    "policy.slow_critic": 0,
    "policy.grad_clip": 1,
    "train.prefill": 5_000,
    "train.samples": 1e9,
    "train.pretrain_samples": 50e6,
    "train.pretrain_observation": 0.6,
    "train.pretrain_dynamics": 0.3,
    "train.eval_every": 5_000,
    "train.eval_episodes": 10,
    "train.final_episodes": 100,
}


@pytest.mark.parametrize(("option", "value"), [*PAPER.items(), *PAPER_TEXT.items()])
def test_paper_preset_is_the_papers_table(option: str, value: Any) -> None:
    assert flatten(preset("paper"))[option] == value


def test_an_update_costs_7600_samples() -> None:
    """N·ℓ + M·H = 100·16 + 400·15."""
    assert samples_per_update(preset("paper")) == 7_600


@pytest.mark.parametrize("name", ["paper", "cpu", "tiny"])
def test_presets_pass_their_own_checks(name: Any) -> None:
    validate(preset(name))


def test_tiny_plays_the_toy_environment_and_cpu_stays_within_25k_interactions() -> None:
    assert preset("tiny").env == "Catch"
    assert preset("cpu").train.interactions <= 25_000


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown preset 'papr': expected one of paper, cpu, tiny.*did you mean paper"
    ):
        preset("papr")  # type: ignore[arg-type]


def test_configurations_cannot_be_changed_by_accident() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 1  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------
# To and from files


@pytest.mark.parametrize("name", ["paper", "cpu", "tiny"])
def test_round_trip_through_json(name: Any, tmp_path: Path) -> None:
    config = with_options(preset(name), {"seed": 7, "env": "Pong"})
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_dict(config)))
    assert load(path) == config


def test_infinite_temperature_survives_json() -> None:
    config = with_options(Config(), {"replay.temperature": math.inf})
    text = json.dumps(to_dict(config), allow_nan=False)
    assert from_dict(json.loads(text)).replay.temperature == math.inf


def test_what_a_file_leaves_out_comes_from_the_base() -> None:
    config = from_dict({"policy": {"horizon": 3}}, preset("tiny"))
    assert config == with_options(preset("tiny"), {"policy.horizon": 3})
    assert from_dict({}) == preset("paper")


def test_with_options_takes_paths_hyphens_and_texts() -> None:
    options = {"world-model.layers": "4", "train.samples": "1e6", "compile": "true", "policy.input": "zh"}
    config = with_options(Config(), options)
    assert (config.world_model.layers, config.train.samples, config.compile, config.policy.input) == (
        4,
        1e6,
        True,
        "zh",
    )
    assert config.world_model.width == 256


def test_flatten_and_with_options_are_inverse() -> None:
    assert with_options(Config(), flatten(preset("cpu"))) == preset("cpu")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seeed": 1}, r"unknown option seeed \(did you mean seed\?\)"),
        ({"world_model.layer": 1}, r"unknown option world_model.layer \(did you mean layers or"),
        ({"wrold_model.layers": 1}, r"unknown option wrold_model \(did you mean world_model\?\)"),
        ({"policy": 3}, r"option policy is a group of options, but came as 3"),
        ({"seed": 1.5}, r"option seed must be a whole number, but came as 1.5"),
        ({"seed": True}, r"option seed must be a whole number, but came as True"),
        ({"seed": "many"}, r"option seed must be a whole number, but came as 'many'"),
        ({"seed": "inf"}, r"option seed must be a whole number, but came as 'inf'"),
        ({"policy.discount": None}, r"option policy.discount must be a number, but came as None"),
        ({"compile": "yes"}, r"option compile must be true or false, but came as 'yes'"),
        ({"env": 3}, r"option env must be a text, but came as 3"),
        ({"policy.input": "h"}, r"option policy.input must be one of z, zh, but came as 'h'"),
    ],
)
def test_options_that_do_not_exist_or_fit(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        with_options(Config(), options)


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "cannot read the configuration"), ("{", "cannot read the configuration"), ("[]", "must be a JSON object")],
)
def test_files_that_hold_no_configuration(content: str | None, text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=text):
        load(path)


# --------------------------------------------------------------------------------------------------
# Checks


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"replay.temperature": -1}, r"option replay.temperature must not be negative, but is -1"),
        ({"replay.temperature": 0}, r"replay.temperature must be above 0 \(inf for uniform sampling\), but is 0"),
        ({"policy.actor_lr": "nan"}, r"option policy.actor_lr is not a number"),
        ({"seed": -1}, r"option seed must not be negative, but is -1"),
        ({"threads": -2}, r"option threads must not be negative"),
        ({"world_model.layers": 0}, r"world_model.layers must be at least 1, but is 0"),
        ({"policy.horizon": 0}, r"policy.horizon must be at least 1, but is 0"),
        ({"train.log_every": 0}, r"train.log_every must be at least 1, but is 0"),
        ({"env_options.stack": 0}, r"env_options.stack must be at least 1, but is 0"),
        ({"world_model.latent_categories": 1}, r"latent_categories must be at least 2, but is 1"),
        ({"world_model.heads": 3}, r"width \(256\) must be a multiple of world_model.heads \(3\)"),
        ({"world_model.width": 25, "world_model.heads": 5}, r"width must be even .*, but is 25"),
        ({"policy.discount": 1.1}, r"policy.discount must lie between 0 and 1, but is 1.1"),
        ({"policy.gae_lambda": 2}, r"policy.gae_lambda must lie between 0 and 1, but is 2"),
        ({"policy.entropy_threshold": 1.5}, r"policy.entropy_threshold must lie between 0 and 1"),
        ({"policy.end_threshold": 1.5}, r"policy.end_threshold must lie between 0 and 1"),
        ({"policy.slow_critic": 1.5}, r"policy.slow_critic must lie between 0 and 1"),
        ({"world_model.unimix": 1.5}, r"world_model.unimix must lie between 0 and 1"),
        ({"world_model.encoder_gradient": 1.5}, r"world_model.encoder_gradient must lie between 0 and 1"),
        ({"world_model.dropout": 1}, r"world_model.dropout must be below 1, but is 1"),
        ({"train.pretrain_dynamics": 0.5}, r"pretrain_dynamics must be at most 1 .*, but is 1.1"),
        ({"train.samples": 1e6}, r"pretrain_samples \(5e\+07\) is part of train.samples \(1e\+06\)"),
        ({"train.interactions": 100}, r"train.prefill \(5000\) cannot exceed train.interactions \(100\)"),
        (
            {"train.prefill": 116},
            r"needs 100 different sequences of 16 steps, but a prefill of 116 steps has 99: raise",
        ),
        ({"train.prefill": 3}, r"a prefill of 3 steps has 0: raise --train.prefill or lower --world-model.batch-size"),
        ({"env_options.size": 7}, r"env_options.size must be at least 8 pixels, but is 7"),
    ],
)
def test_values_that_cannot_work_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        validate(with_options(Config(), options))


@pytest.mark.parametrize(
    "options",
    [
        {"replay.temperature": math.inf},
        {"train.prefill": 117},
        {"policy.batch_size": 1600},
        {"train.pretrain_observation": 0.7, "train.pretrain_dynamics": 0.3},
        {"policy.entropy_threshold": 1, "policy.end_threshold": 0},
        {"train.eval_every": 0, "env_options.noop_max": 0},
    ],
)
def test_values_at_the_edge_are_accepted(options: dict[str, Any]) -> None:
    validate(with_options(Config(), options))
