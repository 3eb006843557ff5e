"""The documentation: pages made of code are current, examples run, every metric is explained, the site builds."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from twm.cli import main
from twm.train import metrics

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)

# What makes a real training of the page one of seconds; where options are given twice, the last counts.
QUICK = (
    "--train.interactions 200 --train.prefill 100 --train.samples 12000 --train.pretrain-samples 4000 "
    "--train.final-episodes 2 --threads 1 --quiet"
)


def blocks(page: str, language: str) -> list[tuple[str, str]]:
    """(title, text) of each block of code."""
    found = FENCE.findall((DOCS / page).read_text())
    return [(title, text) for kind, title, text in found if kind == language]


def run_page(page: str, until: int | None = None) -> None:
    """Run the Python blocks of a page one after the other, as a reader would; those with a title become files."""
    namespace: dict[str, object] = {}
    for number, (title, text) in enumerate(blocks(page, "python")[:until]):
        if title:
            Path(title).write_text(text)
        else:
            exec(compile(text, f"{page}, block {number}", "exec"), namespace)


def command(page: str, beginning: str) -> str:
    """The one line of the page's shell blocks that begins so."""
    lines = [line for _, text in blocks(page, "sh") for line in text.splitlines() if line.startswith(beginning)]
    assert len(lines) == 1, lines
    return lines[0]


def run_command(line: str) -> None:
    assert main(shlex.split(line)[1:]) == 0, line


def test_generated_pages_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "generate_docs.py"))
    assert script["main"](["--check"]) == 0, capsys.readouterr().out


def test_every_metric_is_explained(small_run: Path) -> None:
    """The keys of a real run, against those in the tables of the glossary."""
    explained = set(re.findall(r"`([^`\s]+)`", (DOCS / "metrics.md").read_text()))
    keys = {key for record in metrics.read(small_run / "metrics.jsonl") for key in record}
    keys |= json.loads((small_run / "eval.json").read_text()).keys()
    assert {"loss/latent", "eval/score_mean", "pretrain/policy", "random_mean"} <= keys  # the run shows every kind
    assert keys - explained == set()


def test_python_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("python-api.md")
    assert (tmp_path / "runs" / "example" / "eval.json").exists()


@pytest.mark.slow
def test_own_environment_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of the page, trained and evaluated by its commands with a small budget, then dreamt in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = "your-own-environment.md"
    run_page(page, until=1)  # the class
    assert len((tmp_path / "walk.py").read_text().splitlines()) <= 36
    run_command(f"{command(page, 'twm train --env walk')} {QUICK}")
    run_command(f"{command(page, 'twm eval')} --steps 40")
    run_page(page, until=2)  # the dream


def test_own_data_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = "your-own-data.md"
    run_page(page, until=1)  # recording
    run_command(f"{command(page, 'twm train')} {QUICK}")
    run_command(command(page, "twm eval"))
    run_page(page)


def test_links_and_files_of_the_readme_exist() -> None:
    """Relative links of pages outside the site, which mkdocs does not see."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        text = page.read_text() if page.exists() else ""
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text):
            assert (ROOT / target).exists(), f"{page.name} links to {target}"


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= 15
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]+src="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]+rel="(?:stylesheet|preload|icon|preconnect)"[^>]+href="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]+href="([^"]+)"[^>]+rel="(?:stylesheet|preload|icon|preconnect)"', text)
        assert not [each for each in loaded if re.match(r"(https?:)?//", each)], page
        assert "arithmatex" not in text, f"{page}: a formula was not drawn"
