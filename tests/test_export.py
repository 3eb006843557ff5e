"""Exports: the ONNX file does what PyTorch does, plays without torch, and the weights come back."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small import image_spec, small, vector_spec

import twm
from twm.agent import build
from twm.cli import main
from twm.config import ConfigError
from twm.export import ActingPolicy, ExportError, _score, compare, write_onnx
from twm.train.evaluate import load_agent, load_replay
from twm.train.rundir import RunDir

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra twm[export] is not installed")
ROOT = Path(__file__).resolve().parent.parent


pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.fixture(scope="module")
def exported(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By the command, which prints one JSON object."""
    out = tmp_path_factory.mktemp("export") / "model"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["export", str(small_run), "--out", str(out), "--json"]) == 0
    result = json.loads(printed.getvalue())
    assert result["interactions"] == 100
    assert result["largest_difference"] <= 1e-5
    assert 1 <= result["frames_compared"] <= 64
    files = {"policy.onnx", "weights.safetensors", "config.json", "spec.json", "README.md"}
    assert {path.name for path in out.iterdir()} == files
    return out


def test_onnx_equals_pytorch_on_real_frames(exported: Path, small_run: Path) -> None:
    """Other batch sizes than the one it was traced with, and the agent's own way through its fast convolutions."""
    agent, _, _ = load_agent(small_run)
    replay = load_replay(small_run, agent.spec)
    assert replay is not None
    session = onnxruntime.InferenceSession(exported / "policy.onnx")
    for count in (1, 7):
        o = replay.observations(np.arange(count) * 9)
        (logits,) = session.run(["logits"], {"observation": o})
        with torch.no_grad():
            expected = agent.policy.actor(agent.world_model.encode(torch.as_tensor(o))).numpy()
        assert logits.shape == (count, 3)
        np.testing.assert_allclose(logits, expected, atol=1e-5)


@pytest.mark.slow
def test_vectors_too(tmp_path: Path) -> None:
    agent = build(small(), vector_spec())
    policy = ActingPolicy(agent).eval()
    write_onnx(policy, tmp_path / "p.onnx", agent.spec)
    o = np.random.default_rng(0).normal(size=(9, *agent.spec.observation_shape)).astype(np.float32)
    assert compare(policy, tmp_path / "p.onnx", o)[0] <= 1e-5


def test_another_model_is_noticed(exported: Path) -> None:
    policy = ActingPolicy(build(small(), image_spec())).eval()
    torch.nn.init.normal_(policy.actor.output.weight)
    o = np.random.default_rng(0).integers(0, 256, (9, 2, 16, 16), dtype=np.uint8)
    with pytest.raises(ExportError, match=r"differ from PyTorch's by .* more than 1e-05"):
        compare(policy, exported / "policy.onnx", o)


def test_the_example_plays_without_torch(exported: Path) -> None:
    """torch is made impossible to import."""
    example = str(ROOT / "examples" / "play_onnx.py")
    code = (
        "import runpy, sys; sys.modules['torch'] = None; "
        f"sys.argv = ['play_onnx.py', {str(exported)!r}, '2']; runpy.run_path({example!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["episode 0", "episode 1"]
    assert all(-5 <= float(line.split()[-1]) <= 5 for line in lines)


def test_the_weights_come_back(exported: Path, small_run: Path) -> None:
    original, again = twm.load(small_run), twm.load(exported)
    assert again.spec.actions == original.spec.actions == ("LEFT", "STAY", "RIGHT")
    for module, copy in ((original.world_model, again.world_model), (original.policy, again.policy)):
        expected = module.state_dict()
        assert copy.state_dict().keys() == expected.keys()
        assert all(torch.equal(value, expected[name]) for name, value in copy.state_dict().items())
    assert load_agent(exported)[2] == 100


def test_the_model_card_says_what_it_is(exported: Path, small_run: Path) -> None:
    card = (exported / "README.md").read_text()
    result = json.loads((small_run / "eval.json").read_text())
    machine = json.loads((small_run / "machine.json").read_text())
    assert "| Environment | Catch |" in card
    assert f"| Score | {result['mean']:.4g} [" in card
    assert "over 2 episodes" in card
    assert "100 interactions, seed 0" in card
    assert f"commit {machine['commit'] or 'unknown'}" in card
    assert '"latent_variables": 3' in card
    assert "0 LEFT, 1 STAY, 2 RIGHT" in card


def test_a_score_is_of_the_weights_it_stands_beside(tmp_path: Path) -> None:
    """One game has no interval; the final evaluation says nothing of earlier weights."""
    result = {"mean": 3.0, "low": None, "high": None, "episodes": [3.0], "interactions": 100}
    (tmp_path / "eval.json").write_text(json.dumps(result))
    assert _score(RunDir(tmp_path), 100) == "3; mean over 1 episodes of whole games, actions sampled"
    assert _score(RunDir(tmp_path), 50) == "not evaluated"


def test_a_policy_with_a_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"only runs with --policy.input z can be exported as ONNX"):
        ActingPolicy(build(small(policy__input="zh"), image_spec()))


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path / "nothing")]) == 1
    assert "is not a run directory" in capsys.readouterr().err
