"""Play with an exported policy, without torch: python examples/play_onnx.py DIR [EPISODES]."""

import sys
from pathlib import Path

import numpy as np
import onnxruntime

from twm.config import load
from twm.envs import make_env

directory, episodes = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
config = load(directory / "config.json")
session = onnxruntime.InferenceSession(directory / "policy.onnx")
env = make_env(config.env, config.env_options, training=False, noop_max=config.train.eval_noop_max)
rng = np.random.default_rng(0)
for episode in range(episodes):
    o, score, over = env.reset(seed=episode), 0.0, False
    while not over:
        (logits,) = session.run(["logits"], {"observation": o[None]})
        a = int(np.argmax(logits[0] + rng.gumbel(size=logits.shape[1])))  # a draw from softmax(logits)
        step = env.step(a)
        o, score, over = step.observation, score + step.reward, step.game_over
    print(f"episode {episode}: score {score:g}")
