"""Options that several commands share: where a configuration starts and how it is checked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args

from tyro.conf import arg

from twm import config as configuration
from twm.commands import UsageError
from twm.config import Config, ConfigError, Preset

if TYPE_CHECKING:
    from twm.types import EnvSpec

PresetOrAuto = Literal["auto", "paper", "cpu", "tiny"]


@dataclass(frozen=True)
class ConfigOptions:
    """A preset or a file first, then every single option over it."""

    preset: PresetOrAuto = "auto"
    """Values that the other options start from: the paper's; real Atari on two CPU cores; the toy environment in
    minutes. auto takes paper on a CUDA device and cpu otherwise."""
    config: Annotated[Path | None, arg(metavar="FILE")] = None
    """Start from a config.json instead of a preset, for example that of another run."""
    options: Annotated[Config, arg(name="")] = field(default_factory=Config)

    @property
    def origin(self) -> str:
        """Where the values started, in a word for names: the preset, or "custom" for a file."""
        return "custom" if self.config else resolve_preset(self.preset, self.options.device)

    def announce(self) -> None:
        """Say on standard error what ``auto`` came to mean."""
        if self.preset == "auto" and self.config is None:
            why = "this is a CUDA device" if self.origin == "paper" else "no CUDA device"
            print(f"preset: {self.origin} ({why}; choose with --preset)", file=sys.stderr)

    def checked(self) -> tuple[Config, EnvSpec]:
        """The configuration, refused before anything is created if it cannot work, and its environment's facts."""
        from twm.envs import env_spec

        config = self.checked_without_env()
        return config, env_spec(config.env, config.env_options)

    def checked_without_env(self) -> Config:
        """The same where no environment is needed: recorded episodes take its place."""
        configuration.validate(self.options)
        check_device(self.options.device)
        return self.options


def early(args: Sequence[str], *names: str) -> dict[str, str | None]:
    """The values of a few options, before the others can be parsed. Whatever is wrong with them is tyro's to report."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in names:
        parser.add_argument(f"--{name}", nargs="?")
    return vars(parser.parse_known_args(list(args))[0])


def starting_point(args: Sequence[str]) -> ConfigOptions:
    """What ``--preset`` or ``--config`` in the raw arguments say, as the default of all other options."""
    given = early(args, "preset", "config", "device")
    if given["preset"] and given["config"]:
        raise UsageError("--preset and --config both say where the configuration starts: give one of them")
    if given["config"]:
        return ConfigOptions(options=configuration.load(Path(given["config"])))
    asked = given["preset"] or "auto"
    preset = asked if asked in get_args(PresetOrAuto) else "cpu"  # a mistyped one is tyro's to report
    name = resolve_preset(cast(PresetOrAuto, preset), given["device"] or "auto")
    return ConfigOptions(options=configuration.preset(name))


def resolve_preset(preset: PresetOrAuto, device: str) -> Preset:
    """``auto`` is the paper's preset where training runs on CUDA, and the one for two cores elsewhere."""
    if preset != "auto":
        return preset
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    return "paper" if device.startswith("cuda") else "cpu"


def check_device(name: str) -> None:
    """Refuse a device that torch does not know or this machine does not have."""
    import torch

    from twm.train.run import choose_device

    try:
        torch.empty(0, device=choose_device(name))
    except (RuntimeError, AssertionError) as error:  # torch raises either
        raise ConfigError(
            f"device {name!r} cannot be used here: expected auto, cpu, cuda, cuda:N or mps (twm doctor lists those "
            "that are present)"
        ) from error
