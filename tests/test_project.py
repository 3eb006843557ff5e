"""The project itself: direction of imports, heavy packages behind one door each, one version, what a wheel carries."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import twm

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "twm").rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Names of the packages a file imports, anywhere in it, also those it loads by name when they are asked for."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                names |= {alias.name.split(".")[0] for alias in node.names}
            case ast.ImportFrom(level=0, module=str(module)):
                names.add(module.split(".")[0])
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="_require"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                names |= set(module.split("."))  # torch.utils.tensorboard is tensorboard's door
    return names


def test_imports_point_one_way() -> None:
    """The contracts of import-linter in pyproject.toml."""
    command = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("packages", [{"ray"}, {"fastapi", "starlette", "uvicorn"}, {"wandb"}, {"tensorboard"}])
def test_heavy_packages_are_imported_in_one_file(packages: set[str]) -> None:
    files = [str(path.relative_to(ROOT)) for path in SOURCES if imported(path) & packages]
    assert len(files) == 1, f"{' and '.join(packages)} imported by {', '.join(files) or 'no file'}"


def test_nothing_is_unpickled() -> None:
    for path in SOURCES:
        assert not imported(path) & {"pickle", "cloudpickle", "dill", "shelve", "marshal"}, path
        assert not re.search(r"\btorch\.load\(|allow_pickle\s*=\s*True", path.read_text()), path


def test_one_version() -> None:
    assert metadata.version("twm") == twm.__version__
    assert "version" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"]
    assert f"## {twm.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_torch_is_pinned_and_all_means_every_extra() -> None:
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert everything == f"twm[{','.join(extras)}]"
