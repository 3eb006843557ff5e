"""Write the pages that are made of code: docs/commands.md and docs/configuration.md.

python scripts/generate_docs.py            write them
python scripts/generate_docs.py --check    exit with 1 if they are not current
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tyro.conf import Positional

from twm.commands import COMMANDS
from twm.commands.options import ConfigOptions
from twm.config import Config, flatten, preset

DOCS = Path(__file__).resolve().parent.parent / "docs"
MADE = "<!-- Made by scripts/generate_docs.py from the code: change it there. -->\n"


def attribute_docs(kind: type) -> dict[str, str]:
    """The text under each attribute of a class, on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    if not isinstance(body, ast.ClassDef):
        raise TypeError(f"expected a class, got {kind!r}")
    texts = {}
    for statement, after in zip(body.body, body.body[1:]):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts


# --------------------------------------------------------------------------------------------------
# Commands


def commands_page() -> str:
    parts = [
        f"{MADE}\n# Commands\n",
        "`twm COMMAND --help` shows the same in a terminal. With `--json`, where offered, standard output carries "
        "exactly one JSON object. Exit codes: 0 done, 1 failed (one line on standard error says why, `--debug` adds "
        "the traceback), 2 bad usage, 130 interrupted.\n",
    ]
    for name, entry in COMMANDS.items():
        module, _, attribute = entry.target.partition(":")
        parts.append(command_section(name, getattr(import_module(module), attribute)))
    return "\n".join(parts)


def command_section(name: str, kind: type) -> str:
    rows, configuration = options(kind)
    lines = [f"## twm {name}\n", f"{inspect.cleandoc(kind.__doc__ or '')}\n"]
    if rows:
        lines += ["| option | default | meaning |", "|---|---|---|", *rows, ""]
    if configuration:
        lines.append("And every option of the [configuration](configuration.md), as `--group.option value`.\n")
    return "\n".join(lines)


def options(kind: type) -> tuple[list[str], bool]:
    """Rows of the table, and whether the options of the configuration come on top."""
    hints, texts = get_type_hints(kind, include_extras=True), attribute_docs(kind)
    rows, configuration = [], False
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if plain(hint) is ConfigOptions:
            inner, _ = options(ConfigOptions)
            rows, configuration = [*inner, *rows], True
        elif plain(hint) is Config:
            configuration = True
        else:
            rows.append(f"| {spelling(field.name, hint)} | {default(field)} | {cell(texts[field.name])} |")
    return rows, configuration


def spelling(name: str, hint: Any) -> str:
    """How the option is typed: --out DIR, --quiet, RUN."""
    metadata = getattr(hint, "__metadata__", ())
    metavar = next((item.metavar for item in metadata if getattr(item, "metavar", None)), None)
    kind = plain(hint)
    if metavar is None:
        metavar = "{" + ",".join(map(str, get_args(kind))) + "}" if get_origin(kind) is Literal else name.upper()
    if any(item in getattr(Positional[int], "__metadata__", ()) for item in metadata):
        return code(metavar)
    flag = f"--{name.replace('_', '-')}"
    return code(flag) if kind is bool else code(f"{flag} {metavar}")


def plain(hint: Any) -> Any:
    """The type without what was annotated to it, and without None."""
    while hasattr(hint, "__metadata__"):
        hint = hint.__origin__
    if get_origin(hint) is Union or type(hint).__name__ == "UnionType":
        return next(each for each in get_args(hint) if each is not type(None))
    return hint


def default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    if field.default is None or field.default == () or field.default is False:
        return ""
    return code(str(field.default))


# --------------------------------------------------------------------------------------------------
# Configuration

GROUPS = {"": "The run", "env_options": "Environment", "replay": "Replay", "world_model": "World model"}
GROUPS |= {"policy": "Policy", "train": "Training"}


def configuration_page() -> str:
    values = {name: flatten(preset(name)) for name in ("paper", "cpu", "tiny")}
    hints = get_type_hints(Config)
    parts = [
        f"{MADE}\n# Configuration\n",
        "Every option, its value in the three presets, and the paper's symbol where it has one. On the command line: "
        "`--group.option value` (`--world-model.batch-size 32`); in Python: "
        '`twm.with_options(config, {"world_model.batch_size": 32})`; in `config.json`, nested. `twm config --preset '
        "cpu` prints a whole one. Values in bold differ from the paper's.\n",
    ]
    for group, title in GROUPS.items():
        kind = hints[group] if group else Config
        prefix = f"{group}." if group else ""
        texts = attribute_docs(kind)
        parts += [f"## {title}\n", f"{inspect.cleandoc(kind.__doc__ or '')}\n"]
        parts += ["| option | symbol | paper | cpu | tiny | meaning |", "|---|---|---|---|---|---|"]
        for field in dataclasses.fields(kind):
            path = prefix + field.name
            if path in values["paper"]:
                parts.append(configuration_row(path, texts[field.name], [values[name][path] for name in values]))
        parts.append("")
    return "\n".join(parts)


def configuration_row(path: str, text: str, values: list[Any]) -> str:
    symbol = re.search(r" ?\[([^\]]{1,3})\]", text)
    if symbol:
        text = text.replace(symbol.group(0), "", 1)
    shown = [code(number(value)) for value in values]
    shown = [each if value == values[0] else f"**{each}**" for each, value in zip(shown, values)]
    return f"| {code(path)} | {symbol.group(1) if symbol else ''} | {' | '.join(shown)} | {cell(text)} |"


def number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def code(text: str) -> str:
    return f"`{text}`"


def cell(text: str) -> str:
    """Text inside a table."""
    return text.replace("|", "\\|")


PAGES = {"commands.md": commands_page, "configuration.md": configuration_page}


def main(arguments: list[str]) -> int:
    stale = [name for name, make in PAGES.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != make()]
    if "--check" in arguments:
        print(f"not current: {', '.join(stale)}; run python scripts/generate_docs.py" if stale else "current")
        return int(bool(stale))
    for name in stale:
        (DOCS / name).write_text(PAGES[name]())
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
