"""The examples do what they say."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

from twm.studio.library import demo_run

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_the_onnx_example_needs_twenty_lines() -> None:
    tree = ast.parse((EXAMPLES / "play_onnx.py").read_text())
    lines = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)}
    assert len(lines) <= 22


@pytest.mark.slow
def test_ppo_learns_in_the_dream_of_the_run_that_ships_with_the_package() -> None:
    """A policy that does not look scores -25/7 in Catch; PPO, after 10,000 steps in dreams only, clearly more."""
    example = runpy.run_path(str(EXAMPLES / "ppo_in_a_dream.py"))
    before, after = example["main"](demo_run(), 10_000)
    assert before < -2.5
    assert after > before + 1
