"""What a sweep costs over its runs: the time of `twm sweep` beside that of the same `twm train` commands in a row.

    python scripts/sweep_overhead.py                                     # 8 runs of the tiny preset on two cores
    python scripts/sweep_overhead.py --runs 2 --set train.interactions=1200 train.samples=1.05e6   # a quick look

First the runs one after another, then the sweep, both as commands, so that each pays for its own start. Both may use
the first CORES cores only. A sweep without any cost would take 1/CORES of the time; what it takes of that, the ratio,
must not be above LIMIT (exit code 1). The results of both must be equal. It needs a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from twm.config import to_dict
from twm.lab.plan import Plan, make_plan, parse_options, record
from twm.train.files import write_json
from twm.train.rundir import machine

TWM = (sys.executable, "-m", "twm.cli")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1.15, help="largest ratio that is good enough")
    parser.add_argument("--set", nargs="*", default=[], metavar="PATH=VALUE", help="options of every run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result there, as JSON")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
    if len(cores) < arguments.cores or arguments.runs % arguments.cores:
        raise SystemExit(f"error: {arguments.runs} runs cannot be shared equally by {arguments.cores} of {cores} cores")
    os.sched_setaffinity(0, cores)  # the commands inherit it
    plan = make_plan(preset="tiny", envs=["Catch"], seeds=arguments.runs, options=parse_options(arguments.set))
    result = {"runs": arguments.runs, "cores": arguments.cores, "set": arguments.set, **measure(plan, arguments.cores)}
    if arguments.out:
        write_json(arguments.out, {**result, "limit": arguments.limit, "machine": machine()})
    within = result["ratio"] <= arguments.limit
    print(f"one after another {result['one_after_another_seconds']:.1f} s")
    print(f"1/{arguments.cores} of that       {result['ideal_seconds']:.1f} s")
    print(f"sweep             {result['sweep_seconds']:.1f} s")
    print(f"ratio             {result['ratio']:.3f}, {'within' if within else 'ABOVE'} the limit of {arguments.limit}")
    return 0 if within else 1


def measure(plan: Plan, cores: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="twm-overhead-") as directory:
        out = Path(directory)
        alone = one_after_another(plan, out / "alone")
        record(plan, out / "plan")
        swept = seconds("sweep", "--plan", str(out / "plan" / "sweep.json"), "--out", str(out / "sweep"))
        for run in plan.runs():
            if scores(run.directory(out / "alone")) != scores(run.directory(out / "sweep")):
                raise SystemExit(f"error: {run.name} has other scores in the sweep than alone")
    ideal = alone / cores
    return {"one_after_another_seconds": alone, "ideal_seconds": ideal, "sweep_seconds": swept, "ratio": swept / ideal}


def one_after_another(plan: Plan, out: Path) -> float:
    total = 0.0
    for run in plan.runs():
        config = out / "configs" / f"seed{run.config.seed}.json"
        config.parent.mkdir(parents=True, exist_ok=True)
        write_json(config, to_dict(run.config))
        total += seconds("train", "--config", str(config), "--out", str(run.directory(out)), "--quiet")
    return total


def seconds(*command: str) -> float:
    start = time.perf_counter()
    done = subprocess.run([*TWM, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: twm {' '.join(command)} failed:\n{done.stderr}")
    took = time.perf_counter() - start
    print(f"twm {command[0]:<6} {took:8.1f} s", file=sys.stderr, flush=True)
    return took


def scores(run: Path) -> list[float]:
    episodes: list[float] = json.loads((run / "eval.json").read_text())["episodes"]
    return episodes


if __name__ == "__main__":
    sys.exit(main())
