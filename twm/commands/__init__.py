"""One file per command of ``twm``, and what they share.

A command is a frozen dataclass: its docstring and those of its attributes are the help text, tyro fills it from
the command line, and calling it does the work. To add one, write ``twm/commands/NAME.py`` and enter it in the
table ``COMMANDS`` below. Heavy imports (torch, an environment, a web server) belong inside
``__call__``, so that ``--help`` and a mistyped option answer at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from twm.config import ConfigError


class Entry(NamedTuple):
    """A line of the table below."""

    help: str  # one line, for twm --help
    target: str  # module:Class of the command, imported when it is called


COMMANDS: Mapping[str, Entry] = {
    "train": Entry("Train an agent; the same command again goes on where it stopped.", "twm.commands.train:Train"),
    "eval": Entry("Play with a trained agent, or measure its world model.", "twm.commands.evaluate:Eval"),
    "report": Entry("Turn runs into figures and tables, on one page.", "twm.commands.report:MakeReport"),
    "bench": Entry("Time every part on this machine, beside the machine itself.", "twm.commands.bench:Bench"),
    "sweep": Entry("Run games x seeds x ablations on Ray, here or on a cluster.", "twm.commands.sweep:Sweep"),
    "studio": Entry("Play inside the dream, in a browser.", "twm.commands.studio:Studio"),
    "export": Entry("Write a policy as ONNX, and weights with a model card.", "twm.commands.export:Export"),
    "config": Entry("Print a configuration, or the sizes of its networks.", "twm.commands.config:ShowConfig"),
    "doctor": Entry("Show what this machine offers and what is missing.", "twm.commands.doctor:Doctor"),
}


class UsageError(ConfigError):
    """Options that make no sense together: exit code 2, like a mistyped option."""


class Output(NamedTuple):
    """What a command found: ``data`` is printed with ``--json``, ``text`` without. ``failed`` says why it failed all
    the same, if it did."""

    data: Mapping[str, Any]
    text: str
    failed: str = ""


class Command(Protocol):
    """Options, parsed. An attribute ``json: bool`` offers ``--json``.

    A class method ``defaults(args)``, where there is one, reads from the raw arguments what all other options
    fall back to (a preset, a file), and returns the command with those defaults.
    """

    def __call__(self) -> Output | None:
        """Do it. ``None`` if there is nothing to print at the end."""
