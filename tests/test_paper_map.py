"""The map from the paper to the code names only what exists, and the values it prints are the preset's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from twm.config import flatten, preset, with_options

ROOT = Path(__file__).parents[1]
PAPER_TO_CODE = (ROOT / "docs" / "paper-to-code.md").read_text()
DEPARTURES = (ROOT / "docs" / "departures.md").read_text()


def definitions(path: Path) -> set[str]:
    """Functions and classes of a file, and methods as ``Class.method``."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("text", [PAPER_TO_CODE, DEPARTURES], ids=["paper-to-code", "departures"])
def test_every_name_exists(text: str) -> None:
    found = re.findall(r"`((?:twm|tests)/[\w/]+\.py)(?:::([\w.]+))?`", text)
    missing = [
        f"{path}::{name}"
        for path, name in found
        if not (ROOT / path).is_file() or (name and name not in definitions(ROOT / path))
    ]
    assert found
    assert missing == []


def test_every_equation_figure_and_table_is_there() -> None:
    """10 numbered equations, 19 figures, 5 tables."""
    sections = dict(re.findall(r"\n## ([^\n]+)\n(.*?)(?=\n## |\Z)", PAPER_TO_CODE, re.S))
    for title, count in (("Equations", 10), ("Figures", 19), ("Tables", 5)):
        first = re.findall(r"^\| ([\d, –]+) \|", sections[title], re.M)
        numbers: set[int] = set()
        for cell in first:
            for part in cell.split(","):
                ends = [int(x) for x in re.findall(r"\d+", part)]
                numbers |= set(range(ends[0], ends[-1] + 1)) if ends else set()
        assert numbers == set(range(1, count + 1)), title


def test_hyperparameters_are_the_presets() -> None:
    options = flatten(preset("paper"))
    rows = re.findall(r"^\| [^|]+ \| [^|]* ?\| `([\w.]+)` \| (\S+) \|$", PAPER_TO_CODE, re.M)
    assert len(rows) == 38
    for option, value in rows:
        assert with_options(preset("paper"), {option: value}) == preset("paper"), option
        assert option in options


def test_options_that_are_named_exist() -> None:
    groups = "env_options|replay|world_model|policy|train"
    named = set(re.findall(rf"`((?:{groups})\.\w+)", PAPER_TO_CODE + DEPARTURES))
    assert len(named) > 40
    assert named <= set(flatten(preset("paper")))


@pytest.mark.parametrize(("option", "value"), re.findall(r"`((?:world_model|policy)\.\w+) ([a-z-]+)`", DEPARTURES))
def test_values_that_are_named_exist(option: str, value: str) -> None:
    with_options(preset("paper"), {option: value})
