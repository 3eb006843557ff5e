"""Transformer-based world models: learn a world, dream in it, act.

    config = twm.preset("tiny")                      every option, from a preset
    twm.train(config, "runs/catch")                  a run directory with weights, experience and metrics
    agent = twm.load("runs/catch")                   agent.act(observation), agent.world_model.imagine(...)
    env = twm.DreamEnv("runs/catch")                 the dream as a Gymnasium environment

Names are imported when they are first used, so that ``import twm`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from twm.agent import Agent
    from twm.config import Config, ConfigError, preset, with_options
    from twm.dream_env import DreamEnv
    from twm.train.evaluate import load
    from twm.train.loop import train

__all__ = ["Agent", "Config", "ConfigError", "DreamEnv", "load", "preset", "train", "with_options", "__version__"]

_HOMES = {
    "Agent": "twm.agent",
    "Config": "twm.config",
    "ConfigError": "twm.config",
    "DreamEnv": "twm.dream_env",
    "load": "twm.train.evaluate",
    "preset": "twm.config",
    "with_options": "twm.config",
}


def __getattr__(name: str) -> Any:
    if name == "train":  # a package that can be called: see there
        return import_module("twm.train")
    if name not in _HOMES:
        raise AttributeError(f"module 'twm' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
