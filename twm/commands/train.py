"""``twm train``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from twm.commands import Output, UsageError
from twm.commands.options import ConfigOptions, early, starting_point
from twm.commands.summary import run_text
from twm.config import Config, from_dict


@dataclass(frozen=True)
class Train:
    """Train an agent: explore, learn the world, learn to act in dreams of it, evaluate.

    A run lives in one directory. The same command again, or --resume, goes on where it stopped, bit for bit on CPU.
    """

    source: Annotated[ConfigOptions, arg(name="")] = field(default_factory=ConfigOptions)
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """Run directory (default: runs/ENV-PRESET-seedSEED)."""
    resume: Annotated[Path | None, arg(metavar="RUN")] = None
    """Go on with this run and its configuration. Further options must be such that may change, for example more
    interactions."""
    dataset: Annotated[Path | None, arg(metavar="DIR")] = None
    """Recorded episodes to train the world model on, instead of an environment."""
    track: Annotated[tuple[Literal["tensorboard", "wandb"], ...], arg(metavar="{tensorboard,wandb}")] = ()
    """Send the metrics there too (needs the extra twm[track]); metrics.jsonl is always written."""
    quiet: bool = False
    """No progress display."""
    json: bool = False
    """Print the evaluation as one JSON object; everything else goes to standard error."""

    @classmethod
    def defaults(cls, args: Sequence[str]) -> Train:
        """A preset, a file, or the configuration of the run that goes on."""
        given = early(args, "resume", "out", "preset", "config")
        if not given["resume"]:
            return cls(source=starting_point(args))
        clash = [f"--{name}" for name in ("out", "preset", "config") if given[name]]
        if clash:
            raise UsageError(f"--resume takes directory and configuration from the run: leave out {', '.join(clash)}")
        return cls(source=ConfigOptions(options=run_config(Path(given["resume"]))))

    def __call__(self) -> Output:
        config = self.source.checked_without_env() if self._offline() else self.source.checked()[0]
        if self.resume is None:
            self.source.announce()
        named = replace(config, env=self.dataset.resolve().name) if self.dataset else config
        out = self.resume or self.out or Path("runs") / run_name(named, self.source.origin)

        from twm.train.loop import train

        result = train(config, out, quiet=self.quiet, track=self.track, dataset=self.dataset)
        return Output(result, run_text(result, out))

    def _offline(self) -> bool:
        """Trained on recorded episodes, so that there may be no environment."""
        from twm.train.rundir import RunDir

        return self.dataset is not None or (self.resume is not None and RunDir(self.resume).held_out.is_dir())


def run_config(run: Path) -> Config:
    """The configuration that a run directory holds."""
    from twm.train.rundir import RunDir

    return from_dict(RunDir.open(run).config())


def run_name(config: Config, origin: str) -> str:
    """A directory name that says what the run is: environment, preset, seed."""
    env = re.sub(r"[^A-Za-z0-9.]+", "-", config.env).strip("-.")
    return f"{env}-{origin}-seed{config.seed}"
