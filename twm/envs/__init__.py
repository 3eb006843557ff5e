"""The real world: Atari games, the toy Catch, and any Gymnasium environment with discrete actions.

Nothing heavy is imported before an environment of its kind is made.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from twm.config import ConfigError, EnvConfig
from twm.envs.base import Env, EnvState, check_options
from twm.types import EnvSpec

__all__ = ["Env", "EnvState", "make_env", "env_spec", "known_games"]

_ATARI_ID = re.compile(r"(?:ALE/)?(\w+?)(?:-ram)?(?:NoFrameskip|Deterministic)?-v\d+")


def make_env(name: str, options: EnvConfig, *, training: bool, noop_max: int | None = None) -> Env:
    """The environment called ``name``: an Atari game (Breakout), Catch, a Gymnasium id (CartPole-v1) or
    ``module:EnvClass``.

    In training a lost life ends the episode, if the options say so; in evaluation only the end of the game does.
    ``noop_max`` replaces the one of the options, e.g. for evaluation.
    """
    noops = options.noop_max if noop_max is None else noop_max
    check_options(options, noops)
    if name.casefold() == "catch":
        from twm.envs.catch import Catch

        return Catch(options)
    game = _atari_game(name)
    if game is not None:
        from twm.envs.atari import Atari

        return Atari(game, options, training=training, noop_max=noops)
    _refuse_atari_id(name)
    from twm.envs import gym

    if ":" in name or name in gym.registered():
        return gym.GymEnv(name, options)
    raise _unknown(name, gym.registered())


def env_spec(name: str, options: EnvConfig) -> EnvSpec:
    """What the models must know of an environment, without keeping one."""
    env = make_env(name, options, training=False)
    env.close()
    return env.spec


def known_games() -> list[str]:
    """The built-in names: Catch and the Atari games that ale-py brings (without it, the 26 of the benchmark)."""
    from twm.envs.atari import ATARI_100K, games

    try:
        return ["Catch", *games()]
    except ConfigError:
        return ["Catch", *ATARI_100K]


def _atari_game(name: str) -> str | None:
    """The game's proper name, whatever the case and underscores; None if there is no such game."""
    names = {game.casefold(): game for game in known_games()[1:]}
    return names.get(name.casefold().replace("_", ""))


def _refuse_atari_id(name: str) -> None:
    """Gymnasium's Atari ids stand for other settings than the benchmark's, so they are not taken for the games here."""
    found = _ATARI_ID.fullmatch(name)
    game = _atari_game(found.group(1)) if found else None
    if game is not None:
        raise ConfigError(
            f"environment {name!r}: Atari games go by their plain names here, with the settings of the options "
            f"instead of Gymnasium's: {game}"
        )


def _unknown(name: str, ids: Collection[str]) -> ConfigError:
    """Says which names come nearest."""
    names = {known.casefold(): known for known in [*known_games(), *ids]}
    near = [names[match] for match in difflib.get_close_matches(name.casefold(), list(names), n=3, cutoff=0.5)]
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return ConfigError(
        f"unknown environment {name!r}: {meant}Expected an Atari game (e.g. Breakout), Catch, a Gymnasium id "
        "(e.g. CartPole-v1) or module:EnvClass"
    )
