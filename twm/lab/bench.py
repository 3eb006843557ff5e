"""How fast it is on this machine, beside how fast the machine is (paper, "Wall-Clock Times").

Every part is timed, updates in as many processes as training uses, between two measurements of the machine itself, a
large float32 matrix product by PyTorch. ``units`` = seconds x GFLOPS measured: what the part would take in seconds on
a machine of one GFLOPS, so figures from different machines compare. ``of_peak`` is the counted work over what the
machine could have done, by PyTorch's product or by the package's own where it is faster (``gflops_in_c``).
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.flop_counter import FlopCounterMode

from twm.agent import Agent
from twm.config import Config, with_options
from twm.envs import make_env
from twm.imagination import imagine
from twm.native import plain_only
from twm.nn import products
from twm.replay import Replay
from twm.train.learner import Learner
from twm.train.loop import configure_torch
from twm.train.partners import MOST, SMALLEST_SHARE, processes
from twm.train.run import choose_device
from twm.train.rundir import machine as describe_machine
from twm.types import Batch, EnvSpec

ENTRIES, QUICK_ENTRIES = 100_000, 20_000
Part = dict[str, float]
Report = Callable[[str, Part], None]


def bench(config: Config, *, quick: bool = False, note: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Time every part of ``config`` on its device; ``quick`` repeats less."""
    configure_torch(config)
    device = choose_device(config.device)
    torch.manual_seed(config.seed)
    env = make_env(config.env, config.env_options, training=True)
    clock = Clock(device, quick)
    replay = filled_replay(env.spec, QUICK_ENTRIES if quick else ENTRIES)
    parts: dict[str, Part] = {}

    def report(name: str, part: Part) -> None:
        parts[name] = part
        if note is not None:
            note(f"{name:<22} {part['seconds']:9.4f} s   {part['per_second']:12,.1f} /s")

    _training_parts(config, env.spec, device, replay, clock, report)
    peak_memory = peak_memory_mb(processes(config, device) - 1)
    _acting_parts(config, env.spec, device, clock, report)
    _data_parts(config, env, replay, clock, report)
    env.close()
    machine = {
        "gflops": clock.gflops(),
        "gflops_in_c": gflops_in_c(device),
        "bandwidth_gb_per_s": memory_bandwidth(device),
        **describe_machine(),
    }
    peak = max(machine["gflops"], machine["gflops_in_c"] or 0.0)
    counted = counted_gflop(config, env.spec)
    for name, part in parts.items():
        _add_units(part, machine["gflops"], peak, counted.get(name))
    return {
        "machine": machine,
        "parts": parts,
        "startup": startup_seconds(repeats=1 if quick else 2),
        "peak_memory_mb": peak_memory,
        "settings": {
            "env": config.env,
            "device": str(device),
            "precision": config.precision,
            "compile": config.compile,
            "processes": processes(config, device),
            "acting": "onnxruntime" if can_export(device) else "torch",
            "quick": quick,
        },
    }


# --------------------------------------------------------------------------------------------------
# Parts


def _training_parts(
    config: Config, spec: EnvSpec, device: torch.device, replay: Replay, clock: Clock, report: Report
) -> None:
    c, p = config.world_model, config.policy
    learner = Learner(config, spec, device)
    rng = np.random.default_rng(config.seed)
    batch = learner.batch(replay.sample(c.batch_size, c.sequence_length, config.replay.temperature, rng)[0])
    samples, dreamed = c.batch_size * c.sequence_length, p.batch_size * p.horizon
    pool: Any = None

    def update_world_model() -> None:
        nonlocal pool
        _, pool = learner.update_world_model(batch)

    report("world_model_update", clock.time(update_world_model, samples))
    report("imagination", clock.time(lambda: learner.dream(pool), dreamed))
    # Several times the work of the above on the same weights: warm, long enough to need fewer repeats and, as time is
    # linear in the dreams, a part of them where there is a hurry.
    part = 8 if clock.quick and p.batch_size >= 64 else 1
    few = min(c.batch_size, SMALLEST_SHARE * MOST)  # sequences to start from
    options = {"world_model.memory": False, "world_model.batch_size": few, "policy.batch_size": p.batch_size // part}
    vanilla = Learner(with_options(config, options), spec, device)
    vanilla.world_model.load_state_dict(learner.world_model.state_dict())
    _, starts = vanilla.update_world_model(Batch(*(x[:few] for x in batch)))
    timed = clock.time(lambda: vanilla.dream(starts), dreamed // part, warm_up=False, repeats=(clock.repeats + 1) // 2)
    vanilla.close()
    report("imagination_vanilla", {**timed, "seconds": timed["seconds"] * part})
    dreams = partial(learner.dream, pool)
    report("policy_update", clock.time(learner.update_policy, dreamed, prepare=dreams, warm_up=not clock.quick))
    if not clock.quick:  # nothing but the three parts above, one after the other
        report("update", clock.time(lambda: learner.update(batch), samples + dreamed, warm_up=False))
    learner.close()


def _acting_parts(config: Config, spec: EnvSpec, device: torch.device, clock: Clock, report: Report) -> None:
    """One observation at a time on one thread, as a policy runs in a game.

    ``act_z`` is the fastest way there is, ``act_z_torch`` and ``act_zh`` are ``agent.act``.
    """
    rng = np.random.default_rng(config.seed)
    shape = spec.observation_shape
    o = rng.integers(256, size=shape, dtype=np.uint8) if spec.is_image else rng.normal(size=shape).astype(np.float32)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, view in (("act_z_torch", "z"), ("act_zh", "zh")):
            agent: Agent = Learner(with_options(config, {"policy.input": view}), spec, device).agent
            act = partial(agent.act, o)
            timed = clock.time(act, 1, inner=100)
            report(name, timed)
            if name == "act_z_torch":
                exported = partial(exported_policy(agent), o) if can_export(device) else None
                report("act_z", timed if exported is None else clock.time(exported, 1, inner=100))
    finally:
        torch.set_num_threads(threads)


def can_export(device: torch.device) -> bool:
    """Whether acting can be timed without PyTorch too."""
    return device.type == "cpu" and all(map(find_spec, ("onnx", "onnxscript", "onnxruntime")))


def exported_policy(agent: Agent) -> Callable[[npt.NDArray[Any]], int]:
    """The acting policy as ``twm export`` writes it and ``examples/play_onnx.py`` plays it, on one thread."""
    import onnxruntime

    from twm.export import ONNX_FILE, ActingPolicy, write_onnx

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / ONNX_FILE
        write_onnx(ActingPolicy(agent).eval(), path, agent.spec)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)

    def act(o: npt.NDArray[Any]) -> int:
        (logits,) = session.run(["logits"], {"observation": o[None]})
        return int(np.argmax(logits[0] + rng.gumbel(size=logits.shape[1])))

    return act


def _data_parts(config: Config, env: Any, replay: Replay, clock: Clock, report: Report) -> None:
    c = config.world_model
    rng = np.random.default_rng(config.seed)
    env.reset(seed=config.seed)

    def steps() -> None:
        for _ in range(500):
            step = env.step(int(rng.integers(env.spec.num_actions)))
            if step.terminated or step.truncated:
                env.reset()

    report("env_step", clock.time(steps, 500))
    draw = partial(replay.sample, c.batch_size, c.sequence_length, config.replay.temperature, rng)
    report("replay_sample", clock.time(draw, c.batch_size * c.sequence_length, inner=10))


def counted_gflop(config: Config, spec: EnvSpec) -> dict[str, float]:
    """Multiplications and additions of each part in 10⁹, counted on a small batch and scaled: they are linear in it.

    Convolutions count as PyTorch's own do them; the fast ones need fewer multiplications for the same result, so a part
    may show more than the machine seems to allow.
    """
    rows, dreams, T, H = 2, 4, config.world_model.sequence_length, config.policy.horizon
    small = with_options(config, {"world_model.batch_size": rows, "policy.batch_size": dreams, "compile": False})
    learner = Learner(small, spec, torch.device("cpu"))
    sequences = filled_replay(spec, 10 * T).sample(rows, T, math.inf, np.random.default_rng(0))[0]
    batch = learner.batch(sequences)
    with plain_only():
        model, (_, pool) = _count(lambda: learner.update_world_model(batch))
        dreaming, dream = _count(lambda: imagine(learner.world_model, learner.policy, pool, dreams, H))
        improving, _ = _count(lambda: learner.update_policy(dream))
        acting, _ = _count(lambda: learner.agent.act(sequences.o[0, 0]))
    by_rows, by_dreams = config.world_model.batch_size / rows, config.policy.batch_size / dreams
    return {
        "world_model_update": model * by_rows,
        "imagination": dreaming * by_dreams,
        "policy_update": improving * by_dreams,
        "act_z": acting,
        "act_z_torch": acting,
    }


def _count(work: Callable[[], Any]) -> tuple[float, Any]:
    with FlopCounterMode(display=False) as counter:
        result = work()
    return counter.get_total_flops() / 1e9, result


def filled_replay(spec: EnvSpec, entries: int) -> Replay:
    """Noise in episodes of 500 steps: the content does not matter for the time, the size may."""
    replay = Replay.create(None, spec, entries)
    rng = np.random.default_rng(0)
    noise = rng.integers(256, size=(256, *spec.frame_shape)).astype(np.uint8 if spec.is_image else np.float32)
    for t in range(entries):
        replay.append(noise[t % 256], int(rng.integers(spec.num_actions)), 0.0, t % 500 == 499, False)
    return replay


# --------------------------------------------------------------------------------------------------
# Clock and machine


class Clock:
    """The best of a few repeats; the machine's own speed is measured again around every part."""

    def __init__(self, device: torch.device, quick: bool) -> None:
        self.device, self.quick, self.repeats = device, quick, 1 if quick else 5
        self._gflops: list[float] = []

    def time(
        self,
        work: Callable[..., Any],
        per_call: int,
        *,
        inner: int = 1,
        prepare: Callable[[], Any] | None = None,
        warm_up: bool = True,
        repeats: int | None = None,
    ) -> Part:
        """Seconds of one call of ``work`` (given what ``prepare`` makes, untimed) and samples per second."""
        if warm_up:
            work(*(() if prepare is None else (prepare(),)))
        self._gflops.append(matmul_gflops(self.device))
        best = math.inf
        for _ in range(repeats or self.repeats):
            arguments = () if prepare is None else (prepare(),)
            synchronise(self.device)
            start = time.perf_counter()
            for _ in range(inner):
                work(*arguments)
            synchronise(self.device)
            best = min(best, (time.perf_counter() - start) / inner)
        self._gflops.append(matmul_gflops(self.device))
        return {"seconds": best, "per_second": per_call / best}

    def gflops(self) -> float:
        """The best the machine showed: its peak, as far as it can be seen from here."""
        return max(self._gflops)


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _add_units(part: Part, gflops: float, peak: float, gflop: float | None) -> None:
    part["units"] = part["seconds"] * gflops
    if gflop is not None:
        part["gflop"] = gflop
        part["of_peak"] = gflop / (part["seconds"] * peak)


def matmul_gflops(device: torch.device, size: int = 2048) -> float:
    """Float32 matrix product of two size x size matrices, best of four, on as many threads as are set."""
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    return 2 * size**3 / _best(lambda: a @ b, device) / 1e9


def gflops_in_c(device: torch.device, size: int = 2048) -> float | None:
    """The same by the package's own products, one on each core at the same time; None where PyTorch's are taken."""
    if device.type != "cpu" or products.unit() is None:
        return None
    threads = torch.get_num_threads()
    operands = [[torch.randn(1, size, size) for _ in range(3)] for _ in range(threads)]

    def one(operands: list[torch.Tensor]) -> None:
        torch.set_num_threads(1)  # of this thread: products of many threads are PyTorch's
        products.bmm(*operands)

    try:
        with ThreadPoolExecutor(threads) as pool:
            seconds = _best(lambda: list(pool.map(one, operands)), device)
    finally:
        torch.set_num_threads(threads)
    return 2 * size**3 * threads / seconds / 1e9


def memory_bandwidth(device: torch.device, megabytes: int = 256) -> float:
    """GB/s of copying an array that no cache holds: read and write counted."""
    source = torch.ones(megabytes * 2**18, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / _best(lambda: target.copy_(source), device) / 1e9


def _best(work: Callable[[], Any], device: torch.device, repeats: int = 4) -> float:
    best = math.inf
    for _ in range(repeats):
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
        best = min(best, time.perf_counter() - start)
    return best


def peak_memory_mb(partners: int) -> float:
    """Of this process and its ended partners, the largest of which stands for all; what they share counts twice."""
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return (own + partners * children) / 1024  # KiB on Linux


def startup_seconds(repeats: int) -> dict[str, float]:
    """From nothing to the help text, and to a loaded package."""
    commands = {"help": ["-m", "twm.cli", "--help"], "import": ["-c", "import twm.agent"]}
    return {
        name: _best(
            lambda arguments=arguments: subprocess.run([sys.executable, *arguments], capture_output=True, check=True),  # type: ignore[misc]
            torch.device("cpu"),
            repeats=repeats,
        )
        for name, arguments in commands.items()
    }


def table(result: dict[str, Any]) -> str:
    """For people."""
    machine, parts = result["machine"], result["parts"]
    in_c = f"; {machine['gflops_in_c']:.0f} by the package's own" if machine["gflops_in_c"] else ""
    lines = [
        f"machine   {machine['gflops']:.0f} GFLOPS (float32 matrix product{in_c}), "
        f"{machine['bandwidth_gb_per_s']:.1f} GB/s, {machine['cpu']}",
        f"{'part':<22}{'seconds':>10}{'per second':>14}{'units':>10}{'of peak':>9}",
    ]
    for name, part in parts.items():
        share = f"{part['of_peak']:.0%}" if "of_peak" in part else ""
        lines.append(f"{name:<22}{part['seconds']:>10.4f}{part['per_second']:>14,.1f}{part['units']:>10.1f}{share:>9}")
    ratio = parts["imagination_vanilla"]["seconds"] / parts["imagination"]["seconds"]
    lines.append(f"imagination: cached {ratio:.2f}x as fast as the vanilla transformer")
    lines.append(f"start-up: help {result['startup']['help']:.2f} s, import {result['startup']['import']:.2f} s")
    lines.append(f"peak memory: {result['peak_memory_mb']:,.0f} MB")
    return "\n".join(lines)
