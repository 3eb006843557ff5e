"""The command line, ``twm COMMAND …``.

The first word is looked up by hand, so that ``twm --help`` and a mistyped command answer without loading torch.
Everything after it belongs to the command, a frozen dataclass that tyro fills (:mod:`twm.commands`).

Exit codes: 0 done, 1 failed (one line on standard error says why; ``--debug`` adds the traceback), 2 bad usage,
130 interrupted. With ``--json`` standard output carries exactly one JSON object, or nothing if the command failed.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from twm import __version__
from twm.commands import COMMANDS, Output, UsageError
from twm.config import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    try:
        return _dispatch(args)
    except SystemExit as exit:  # tyro: 0 after --help, 2 after a bad option
        return exit.code if isinstance(exit.code, int) else 2
    except BrokenPipeError:  # the reader of our output went away (twm config | head): nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"interrupted{f': {interrupt}' if str(interrupt) else ''}", file=sys.stderr)
        return 130
    except Exception as error:  # the last line of defence: a reason for everyone, the traceback for who asks
        if debug:
            traceback.print_exc()
        print(f"error: {_reason(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _dispatch(args: list[str]) -> int:
    name = args[0] if args else ""
    if name in ("", "-h", "--help"):
        print(help_text(), file=sys.stdout if name else sys.stderr)
        return 0 if name else 2
    if name == "--version":
        print(f"twm {__version__}")
        return 0
    if name not in COMMANDS:
        kind = "option" if name.startswith("-") else "command"
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(COMMANDS)}"
        raise UsageError(f"unknown {kind} {name!r}: {hint} (twm --help lists them)")
    as_json = "--json" in args
    with _nothing_else_on_stdout() if as_json else contextlib.nullcontext():
        output = run(name, args[1:])
    if output is not None:
        print(_json(output.data) if as_json else output.text, flush=True)
        if output.failed:
            print(f"error: {output.failed}", file=sys.stderr)
            return 1
    return 0


def run(name: str, args: list[str]) -> Output | None:
    """Parse the arguments of a command and call it."""
    import tyro

    module, _, attribute = COMMANDS[name].target.partition(":")
    kind = getattr(import_module(module), attribute)
    default = kind.defaults(args) if hasattr(kind, "defaults") else tyro.MISSING_NONPROP
    command = tyro.cli(kind, prog=f"twm {name}", args=args, default=default)
    output: Output | None = command()
    return output


def help_text() -> str:
    """What ``twm --help`` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {entry.help}" for name, entry in COMMANDS.items()]
    return "\n".join(
        [
            "usage: twm COMMAND [OPTIONS]",
            "",
            "Transformer-based world models: learn a world, dream in it, act.",
            "",
            "commands:",
            *lines,
            "",
            "options:",
            "  --help     this text; twm COMMAND --help shows the options of a command",
            "  --version  the version",
            "  --debug    with any command: show the traceback of an error",
            "",
            "Start with: twm train --preset tiny",
        ]
    )


def _reason(error: Exception) -> str:
    """One line: what went wrong, and for errors that nobody foresaw how to see more."""
    text = _one_line(str(error))
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    if isinstance(error, ConfigError) or type(error).__module__.startswith("twm."):
        return text
    return f"{type(error).__name__}: {text or 'no further reason'} (--debug shows where)"


def _one_line(text: str) -> str:
    """Lines joined where a sentence ends or goes on, without a list's indentation."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return "".join(
        line if i == 0 else f"{'' if lines[i - 1][-1] in ':;,.' else ';'} {line}" for i, line in enumerate(lines)
    )


def _json(data: Mapping[str, Any]) -> str:
    from twm.train.files import plain

    return json.dumps(plain(data), ensure_ascii=False, allow_nan=False)


@contextlib.contextmanager
def _nothing_else_on_stdout() -> Iterator[None]:
    """Send to standard error whatever is printed meanwhile, by C libraries and child processes too."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


if __name__ == "__main__":
    sys.exit(main())
