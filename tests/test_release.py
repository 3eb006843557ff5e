"""A release as a user gets it: built from a copy of the sources, installed into an empty environment, used elsewhere.

The environment is empty but for a path to the packages that are installed here: torch alone would take minutes to
install, and the versions are pinned anyway. The package itself can only come from the wheel: a path does not carry the
link to the checkout along, and the test looks where it was imported from.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import twm

ROOT = Path(__file__).resolve().parent.parent
BUDGET = (
    "--train.interactions 200 --train.prefill 100 --train.samples 12000 --train.pretrain-samples 4000 "
    "--train.final-episodes 2 --threads 1 --quiet"
)

pytestmark = pytest.mark.slow


def run(command: list[str], **options: object) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sdist, and the wheel made from it, of what git knows and would know; the checkout stays as it is."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout, to tell sources from the rest")
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)])
    return out


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment with the wheel in it."""
    place = tmp_path_factory.mktemp("venv")
    run([sys.executable, "-m", "venv", "--without-pip", str(place)])
    python = place / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    run([sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)])
    site = run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    (Path(site) / "packages_here.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin"


def test_wheel_and_sdist_carry_what_they_should(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"twm-{twm.__version__}-py3-none-any.whl"
    assert (built / f"twm-{twm.__version__}.tar.gz").exists()
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("twm/py.typed", "twm/lab/data/results.csv", "twm/studio/static/index.html", "twm/commands/export.py"):
        assert name in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.split("/")[0] not in ("twm", f"twm-{twm.__version__}.dist-info")]


def test_the_wheel_works_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    where = run([str(installed / "python"), "-c", "import twm; print(twm.__file__)"], cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    assert run([str(installed / "twm"), "--version"], cwd=tmp_path).strip() == f"twm {twm.__version__}"
    found = json.loads(run([str(installed / "twm"), "doctor", "--json"], cwd=tmp_path))
    assert (found["twm"], found["commit"]) == (twm.__version__, None)
    command = [str(installed / "twm"), "train", "--preset", "tiny", "--out", "run", "--json", *shlex.split(BUDGET)]
    result = json.loads(run(command, cwd=tmp_path))
    assert len(result["episodes"]) == 2
    assert (tmp_path / "run" / "checkpoints").is_dir()
