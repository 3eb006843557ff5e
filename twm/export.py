"""A trained run for other people and other programs: ``twm export RUN``.

    policy.onnx            the acting policy, encoder and actor: observations in, action logits out; no torch needed
    weights.safetensors    all weights; twm.load(DIR) makes the agent of them again
    config.json, spec.json what the weights belong to: every option, shapes and actions
    README.md              the model card: game, score, how it was trained, how to use it

The ONNX file is run and compared with PyTorch on frames of the run's replay before the export counts as done.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import twm
from twm.agent import Agent
from twm.config import Config, ConfigError, to_dict
from twm.nn import latents
from twm.train.evaluate import WEIGHTS_FILE, load_agent, load_replay
from twm.train.files import RunError, read_json, write_json
from twm.train.rundir import RunDir
from twm.types import EnvSpec

ONNX_FILE = "policy.onnx"
TOLERANCE = 1e-5
FRAMES = 64  # observations to compare on
TIE = 1e-4  # categories that lead by less are left out of the comparison: there rounding may decide


class ExportError(RunError):
    """The exported file does not do what the model does."""


class ActingPolicy(nn.Module):
    """Encoder and actor: what acting needs. Raw observations (batch, ...) to logits (batch, A)."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        if agent.policy.config.input != "z":
            raise ConfigError(
                "a policy on [z, h] remembers what happened, which a function of one observation cannot: only runs "
                "with --policy.input z can be exported as ONNX"
            )
        self.observation = agent.world_model.observation
        self.actor = agent.policy.actor

    def forward(self, o: Tensor) -> Tensor:
        logits: Tensor = self.actor(latents.sample(self.encode(o), temperature=0.0))
        return logits

    def encode(self, o: Tensor) -> Tensor:
        return self.observation.encode(self.observation.scale(o))


def export(run: Path, out: Path | None = None, *, checkpoint: str = "latest") -> dict[str, Any]:
    """Write the files above to ``out`` (RUN/export) and return what was checked."""
    _require_onnx()
    if RunDir.open(run).held_out.is_dir():
        raise ConfigError(
            f"{run} was trained on recorded episodes: it has no policy to export; share the run directory itself"
        )
    agent, config, step = load_agent(run, which=checkpoint, device="cpu")
    policy = ActingPolicy(agent).eval()
    observations = real_observations(run, agent.spec)
    out = run / "export" if out is None else out
    out.mkdir(parents=True, exist_ok=True)
    write_onnx(policy, out / ONNX_FILE, agent.spec)
    difference, compared = compare(policy, out / ONNX_FILE, observations)
    write_json(out / "config.json", to_dict(config))
    write_weights(agent, out / WEIGHTS_FILE, step)
    # safetensors makes its file readable for the owner only; give it the rights any new file gets here.
    (out / WEIGHTS_FILE).chmod((out / "config.json").stat().st_mode)
    spec = agent.spec
    shapes = {"frame_shape": spec.frame_shape, "stack": spec.stack, "actions": spec.actions}
    write_json(out / "spec.json", {"name": spec.name, **shapes})
    card = model_card(RunDir.open(run), config, spec, step)
    (out / "README.md").write_text(card, encoding="utf-8")
    return {"out": str(out), "interactions": step, "largest_difference": difference, "frames_compared": compared}


def _require_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"export needs {', '.join(missing)}: pip install 'twm[export]'")


def real_observations(run: Path, spec: EnvSpec) -> npt.NDArray[Any]:
    """Some that the agent really met, spread over its replay."""
    replay = load_replay(run, spec)
    if replay is None or not len(replay):
        raise ConfigError(f"{run} has no replay: an export is checked on frames that the agent met, and needs some")
    return replay.observations(np.unique(np.linspace(0, len(replay) - 1, FRAMES).astype(np.int64)))


# --------------------------------------------------------------------------------------------------
# ONNX


def write_onnx(policy: ActingPolicy, path: Path, spec: EnvSpec) -> None:
    """One file with the weights inside, for any number of observations at once."""
    example = torch.zeros((2, *spec.observation_shape), dtype=torch.uint8 if spec.is_image else torch.float32)
    with _quietly():
        torch.onnx.export(
            policy,
            (example,),
            path,
            input_names=["observation"],
            output_names=["logits"],
            dynamic_shapes={"o": {0: "batch"}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@contextlib.contextmanager
def _quietly() -> Any:
    """The exporter tells of its progress, and of the deprecations of its own helpers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@torch.no_grad()
def compare(policy: ActingPolicy, path: Path, observations: npt.NDArray[Any]) -> tuple[float, int]:
    """The largest difference between the logits of the file and those of PyTorch, and on how many observations."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"observation": observations})
    o = torch.as_tensor(observations)
    best = policy.encode(o).topk(2, -1).values  # (frames, V, 2)
    clear = ((best[..., 0] - best[..., 1]).amin(-1) > TIE).numpy()
    if not clear.any():
        raise ExportError("none of the frames has clear latent states, so the export cannot be checked: train longer")
    difference = float(np.abs(policy(o).numpy() - logits)[clear].max())
    if not difference <= TOLERANCE:
        raise ExportError(f"the logits of {path} differ from PyTorch's by {difference:.2g}, more than {TOLERANCE:g}")
    return difference, int(clear.sum())


# --------------------------------------------------------------------------------------------------
# Weights and model card


def write_weights(agent: Agent, path: Path, step: int) -> None:
    parts = {"world_model": agent.world_model, "policy": agent.policy}
    tensors = {
        f"{part}/{name}": value.contiguous()
        for part, module in parts.items()
        for name, value in module.state_dict().items()
    }
    save_file(tensors, path, metadata={"interactions": str(step), "twm": twm.__version__})


def model_card(directory: RunDir, config: Config, spec: EnvSpec, step: int) -> str:
    """What a reader must know before using the weights. Numbers come from the run's own files."""
    machine = read_json(directory.machine_path) if directory.machine_path.exists() else {}
    facts = {
        "Environment": config.env,
        "Score": _score(directory, step),
        "Trained for": f"{step:,} interactions, seed {config.seed}",
        "Method": "Transformer-based world model (Robine et al., ICLR 2023); the policy learned in dreams only",
        "Observations": f"{' x '.join(map(str, spec.observation_shape))}, {'uint8' if spec.is_image else 'float32'}",
        "Actions": ", ".join(f"{i} {name}" for i, name in enumerate(spec.actions)),
        "Code": f"twm {machine.get('twm', twm.__version__)}, commit {machine.get('commit') or 'unknown'}"
        + (", with local changes" if machine.get("dirty") else ""),
        "Machine": f"torch {machine.get('torch', 'unknown')}, {machine.get('gpu') or machine.get('cpu', 'unknown')}",
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    options = json.dumps(to_dict(config), indent=2)
    shape, dtype = (1, *spec.observation_shape), "uint8" if spec.is_image else "float32"
    return _CARD.format(env=config.env, rows=rows, options=options, shape=shape, dtype=dtype)


def _score(directory: RunDir, step: int) -> str:
    """Of the weights after ``step`` interactions: the final evaluation played the last ones."""
    result = read_json(directory.eval_path) if directory.eval_path.exists() else {}
    if "mean" not in result or result.get("interactions") != step:
        return "not evaluated"
    interval = "" if result["low"] is None else f" [{result['low']:.4g}, {result['high']:.4g}]"
    parts = [f"{result['mean']:.4g}{interval}"]
    what = "mean and 95 % interval" if interval else "mean"
    parts.append(f"{what} over {len(result['episodes'])} episodes of whole games, actions sampled")
    if result.get("random_mean") is not None:
        parts.append(f"random play: {result['random_mean']:.4g}")
    return "; ".join(parts)


_CARD = """---
library_name: twm
license: mit
tags: [reinforcement-learning, world-model, transformer]
---

# {env}: an agent trained in the dreams of a transformer

| | |
|---|---|
{rows}

## Use

With `twm`, world model included:

```python
import twm

agent = twm.load(".")
action = agent.act(observation)
```

Without torch, the policy alone:

```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("policy.onnx")
logits = session.run(["logits"], {{"observation": np.zeros({shape}, np.{dtype})}})[0]
```

The most likely action is `logits.argmax(-1)`; the score above is that of actions drawn from `softmax(logits)`.
Observations must be prepared as in training: `config.json`, `env_options`.

## Limits

The agent knows this environment with these settings and nothing else. Its score comes from one seed; other seeds of
the same configuration differ.

## Configuration

```json
{options}
```
"""
