"""The command line: speed, help, options over presets, exit codes, what goes where."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tyro

from twm import __version__, doctor
from twm.cli import main
from twm.commands import COMMANDS
from twm.commands.options import resolve_preset, starting_point
from twm.config import Config, ConfigError, preset, to_dict, with_options
from twm.lab.status import Status

RESULT = {
    "run": "runs/x",
    "episodes": [1.0, 0.5],
    "mean": 0.75,
    "low": 0.5,
    "high": 1.0,
    "random_mean": -0.6,
    "optimal_return": 1.0,
}


def kind(name: str) -> Any:
    module, _, attribute = COMMANDS[name].target.partition(":")
    return getattr(import_module(module), attribute)


def line(text: str) -> int:
    """Run ``twm`` with these words."""
    return main(text.split())


class Fake:
    """Stands for a function of another module, and remembers how it was called."""

    def __init__(self, result: Any = None, act: Callable[[], None] | None = None) -> None:
        self.result, self.act, self.calls = result, act, list[tuple[tuple[Any, ...], dict[str, Any]]]()

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls.append((args, options))
        if self.act:
            self.act()
        return self.result


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    """``twm train`` in an empty directory, without the training."""
    fake = Fake(RESULT)
    monkeypatch.setitem(sys.modules, "twm.train.loop", SimpleNamespace(train=fake))
    monkeypatch.chdir(tmp_path)
    return fake


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


# --------------------------------------------------------------------------------------------------
# Help


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert f"  {name} " in out
        assert entry.help in out


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["trian"], []])
def test_first_answers_load_no_heavy_library(args: list[str]) -> None:
    code = f"""import sys; from twm.cli import main; main({args!r})
print([name for name in ("torch", "numpy", "tyro", "gymnasium", "rich") if name in sys.modules], file=sys.stderr)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "[]"


def test_help_answers_within_half_a_second() -> None:
    """Counted in processor time, of which it needs a fifth: the clock on the wall also counts who else is busy here."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "twm.cli", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(3)) < 0.5


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"twm {__version__}\n"


@pytest.mark.filterwarnings("ignore:get_parser")
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_frozen_dataclass_and_every_option_has_a_help_text(name: str) -> None:
    command = kind(name)
    assert dataclasses.is_dataclass(command)
    assert command.__dataclass_params__.frozen
    for action in tyro.extras.get_parser(command)._actions:
        text = str(action.help).split("(default")[0]
        assert len(text.strip()) > 5, f"twm {name} {action.option_strings} lacks a help text"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: twm {name}" in out


def test_help_shows_the_papers_symbols_and_the_presets_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--preset", "paper", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Temperature of the softmax over minus the visit counts [τ]; inf is uniform. (default: 20.0)" in out
    assert main(["train", "--preset", "tiny", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "inf is uniform. (default: 5.0)" in out


# --------------------------------------------------------------------------------------------------
# Bad usage: 2


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["trian"], "error: unknown command 'trian': did you mean train? (twm --help lists them)"),
        (["xyzzy"], "error: unknown command 'xyzzy': expected one of train, eval"),
        (["--versoin"], "error: unknown option '--versoin'"),
        ([], "usage: twm COMMAND"),
        (["train", "--preset", "cpu", "--world-model.layrs", "4"], "--world-model.layers INT"),
        (["train", "--preset", "cpu", "--world_model.layrs", "4"], "--world-model.layers INT"),
        (["train", "--preset", "cpu", "--batch-size", "4"], "--world-model.batch-size INT"),
        (["train", "--preset", "cpu", "--sed", "4"], "--seed INT"),
        (["train", "--preset", "cpu", "--seed", "four"], "Error parsing --seed"),
        (["train", "--preset", "cup"], "invalid choice 'cup' for argument '--preset'"),
        (["train", "--preset"], "Missing value for argument '--preset'"),
        (["train", "--preset", "cpu", "--config", "x.json"], "error: --preset and --config both say where"),
        (["train", "--resume", "x", "--preset", "cpu", "--out", "y"], "leave out --out, --preset"),
        (["train", "--preset", "cpu", "--track", "paper"], "invalid choice 'paper' for argument '--track'"),
        (["eval"], "RUN"),
        (["eval", "x", "--episodes", "0"], "error: --episodes must be at least 1, but is 0"),
        (["eval", "x", "--checkpoint", "first"], "invalid choice 'first'"),
        (["eval", "x", "--world-model", "--video", "a.mp4"], "error: --video films the agent"),
        (["doctor", "--jsn"], "--json"),
        (["doctor", "now"], "now"),
    ],
)
def test_bad_usage(args: list[str], text: str, train: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert text in " ".join(captured.err.replace("│", " ").split())
    assert captured.out == ""
    assert not train.calls


# --------------------------------------------------------------------------------------------------
# Options over presets and files


def test_options_override_the_preset(train: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert line("train --preset tiny --world-model.layers 4 --world_model.no-memory --seed=3") == 0
    (config, out), options = train.calls[0]
    assert config == with_options(preset("tiny"), {"world_model.layers": 4, "world_model.memory": False, "seed": 3})
    assert out == Path("runs/Catch-tiny-seed3")
    assert options == {"quiet": False, "track": (), "dataset": None}
    assert "preset" not in capsys.readouterr().err


def test_options_override_the_file(train: Fake, tmp_path: Path) -> None:
    saved = with_options(preset("tiny"), {"seed": 5, "replay.temperature": math.inf})
    (tmp_path / "mine.json").write_text(json.dumps(to_dict(saved)))
    assert line("train --config mine.json --train.log-every 7 --quiet --track wandb tensorboard --dataset d") == 0
    (config, out), options = train.calls[0]
    assert config == with_options(saved, {"train.log_every": 7})
    assert out == Path("runs/d-custom-seed5")  # recorded episodes are named after their directory
    assert options == {"quiet": True, "track": ("wandb", "tensorboard"), "dataset": Path("d")}


def test_auto_takes_the_cpu_preset_without_cuda_and_says_so(train: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert line("train --device cpu --env Catch --out here") == 0
    (config, out), _ = train.calls[0]
    assert config == with_options(preset("cpu"), {"env": "Catch", "device": "cpu"})
    assert out == Path("here")
    assert "preset: cpu (no CUDA device; choose with --preset)" in capsys.readouterr().err


def test_auto_takes_the_papers_preset_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_preset("auto", "cuda:1") == "paper"
    assert resolve_preset("auto", "mps") == "cpu"
    assert resolve_preset("tiny", "cuda") == "tiny"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert resolve_preset("auto", "auto") == "paper"
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert resolve_preset("auto", "auto") == "cpu"


@pytest.mark.parametrize("given", ["", "--device cuda", "--preset auto"])
def test_without_a_preset_every_value_is_that_of_auto(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    start = starting_point(given.split())
    assert start.options == preset("paper")
    assert start.origin == "paper"


def test_resume_reads_the_configuration_of_the_run(train: Fake, tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    run.mkdir()
    saved = with_options(preset("tiny"), {"seed": 9})
    (run / "config.json").write_text(json.dumps(to_dict(saved)))
    assert main(["train", "--resume", str(run), "--train.interactions", "9000"]) == 0
    (config, out), _ = train.calls[0]
    assert config == with_options(saved, {"train.interactions": 9000})
    assert out == run
    assert "preset" not in capsys.readouterr().err


def test_resuming_what_is_no_run(train: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", "nowhere"]) == 1
    assert capsys.readouterr().err.startswith("error: nowhere is not a run directory: expected one made by twm train")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--world-model.heads 3", "error: world_model.width (64) must be a multiple of world_model.heads (3)"),
        ("--replay.temperature -1", "error: option replay.temperature must not be negative"),
        ("--train.prefill 20", "error: a batch needs 16 different sequences of 8 steps"),
        ("--env Ctch", "Catch"),
        ("--env Brekout", "Breakout"),
        ("--device foo", "error: device 'foo' cannot be used here: expected auto, cpu, cuda, cuda:N or mps"),
        ("--device cuda:99", "error: device 'cuda:99' cannot be used here"),
        ("--config nowhere.json", "error: cannot read the configuration nowhere.json"),
    ],
)
def test_values_are_refused_before_anything_is_created(
    options: str, text: str, train: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = [] if "--config" in options else ["--preset", "tiny"]
    assert main(["train", *start, *options.split()]) == 1
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert not train.calls
    assert not list(tmp_path.iterdir())


def test_names_of_run_directories(train: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    from twm.commands.train import run_name

    assert run_name(Config(env="my.envs:Grid"), "cpu") == "my.envs-Grid-cpu-seed0"
    assert run_name(Config(env="ALE/Pong-v5", seed=2), "paper") == "ALE-Pong-v5-paper-seed2"
    assert run_name(Config(env="../../etc"), "cpu") == "etc-cpu-seed0"


# --------------------------------------------------------------------------------------------------
# Failures: one line and 1; interrupted: 130


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("too\n  small:\n  one"), "error: too; small: one\n"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), "error: No space left on device: runs/x\n"),
        (RuntimeError("bad\nshapes"), "error: RuntimeError: bad; shapes (--debug shows where)\n"),
        (MemoryError(), "error: MemoryError: no further reason (--debug shows where)\n"),
    ],
)
def test_failures_give_one_line(error: Exception, text: str, train: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    train.act = raising(error)
    assert main(["train", "--preset", "tiny"]) == 1
    assert capsys.readouterr() == ("", text)


@pytest.mark.parametrize("args", ["--debug train --preset tiny", "train --preset tiny --debug"])
def test_debug_shows_the_traceback(args: str, train: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    train.act = raising(RuntimeError("bad shapes"))
    assert line(args) == 1
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert error.endswith("error: RuntimeError: bad shapes (--debug shows where)\n")


def test_interrupted(train: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    train.act = raising(KeyboardInterrupt("saved; go on with twm train --resume runs/x"))
    assert main(["train", "--preset", "tiny"]) == 130
    assert capsys.readouterr() == ("", "interrupted: saved; go on with twm train --resume runs/x\n")


def test_a_reader_that_goes_away_is_no_error() -> None:
    """``twm config | head -1``: the pipe is closed before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "twm.cli", "config", "--preset", "tiny"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


# --------------------------------------------------------------------------------------------------
# What goes where


def test_json_is_alone_on_standard_output(train: Fake, capfd: pytest.CaptureFixture[str]) -> None:
    """Also when Python, a C library or a child process prints meanwhile, and numbers that JSON lacks become null."""

    def noise() -> None:
        print("from python")
        os.write(1, b"from c\n")
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)

    train.act = noise
    train.result = {**RESULT, "low": math.nan}
    assert main(["train", "--device", "cpu", "--env", "Catch", "--json"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out) == {**RESULT, "low": None}
    for line in ("from python", "from c", "from a child", "preset: cpu"):
        assert line in captured.err


def test_json_and_a_failure_leave_standard_output_empty(train: Fake, capfd: pytest.CaptureFixture[str]) -> None:
    train.act = raising(ConfigError("no"))
    assert main(["train", "--preset", "tiny", "--json"]) == 1
    assert capfd.readouterr() == ("", "error: no\n")


def test_training_ends_with_the_score_beside_the_random_policys(
    train: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--preset", "tiny", "--out", "runs/demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "score   0.75 [0.5, 1], mean of 2 episodes",
        "random  -0.6, the random policy in the same environment",
        "best    1, the best possible mean",
        "run     runs/demo",
    ]
    for command in ("report", "studio"):
        assert any(f"twm {command} runs/demo" in line for line in lines) == (command in COMMANDS)


def test_eval_passes_its_options_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    horizon = {"mse": 0.01, "mse_copy": 0.02, "reward_correlation": None, "return_correlation": 0.5}
    ends = {"happened": 3, "predicted": 2, "precision": 1.0, "recall": 2 / 3}
    part = {"steps": 25, "horizons": {"5": horizon}, "ends": ends}
    evaluate, quality = Fake(RESULT), Fake({"policy": part, "random": part})
    monkeypatch.setattr("twm.train.evaluate.evaluate_run", evaluate)
    monkeypatch.setattr("twm.analysis.quality.world_model_quality", quality)
    assert line("eval runs/x --episodes 7 --seed 2 --checkpoint best --device cpu --video a.mp4 --quiet") == 0
    assert capsys.readouterr().out.startswith("score   0.75 [0.5, 1], mean of 2 episodes\n")
    options = {
        "episodes": 7,
        "seed": 2,
        "checkpoint": "best",
        "device": "cpu",
        "video": Path("a.mp4"),
        "quiet": True,
    }
    assert evaluate.calls == [((Path("runs/x"),), options)]
    assert line("eval runs/x --world-model --steps 50 --checkpoint best --device cpu --json") == 0
    options = {"steps": 50, "seed": 0, "checkpoint": "best", "device": "cpu"}
    assert quality.calls == [((Path("runs/x"),), options)]
    assert json.loads(capsys.readouterr().out) == quality.result
    assert line("eval runs/x --world-model") == 0
    text = capsys.readouterr().out
    assert text.startswith("25 fresh steps of the agent: mean squared error")
    assert [row.split() for row in text.splitlines()][2] == ["5", "0.01", "0.02", "-", "0.5"]
    assert "episode ends: 3 happened, 2 predicted, precision 1, recall 0.667" in text


def test_a_sweep_with_failed_runs_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    done, failed = Status("a", "done", 10, 10), Status("b", "failed", 3, 10, error="no luck")
    monkeypatch.setattr("twm.lab.sweep.run_sweep", lambda *_, **__: [done, failed])
    assert line("sweep --preset tiny --envs Catch --out there --json") == 1
    captured = capsys.readouterr()
    assert [run["state"] for run in json.loads(captured.out)["runs"]] == ["done", "failed"]
    assert captured.err == "error: 1 of 2 runs failed; the same command tries them again\n"
    monkeypatch.setattr("twm.lab.sweep.run_sweep", lambda *_, **__: [done])
    assert line("sweep --preset tiny --envs Catch --out there") == 0


def test_a_plan_leaves_nothing_to_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert line("sweep --plan f --seeds 7 --cpus-per-run 4") == 2
    assert "leave out --seeds, --cpus-per-run" in capsys.readouterr().err


def test_config_prints_what_it_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--preset", "paper"]) == 0
    plain = capsys.readouterr().out
    assert main(["config", "--preset", "paper", "--json"]) == 0
    assert json.loads(plain) == json.loads(capsys.readouterr().out) == to_dict(preset("paper"))


def test_parameters_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's table of model sizes, to the last parameter (8.2M, 10.8M, 1.3M, 1.3M with six actions)."""
    pytest.importorskip("ale_py", reason="Pong needs the extra twm[atari]")
    args = ["config", "--preset", "paper", "--env", "Pong", "--parameters"]
    assert main([*args, "--json"]) == 0
    counts = {"observation": 8_234_532, "dynamics": 10_779_394, "actor": 1_315_846, "critic": 1_313_281}
    assert json.loads(capsys.readouterr().out) == counts
    assert main(args) == 0
    table = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert table["world model"] == "19,013,926"
    assert table["total"] == "21,643,053"


# --------------------------------------------------------------------------------------------------
# Doctor


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["devices"][0]["device"] == "cpu"
    assert found["threads"]["cores"] >= 1
    assert set(found["optional"]) == set(doctor.EXTRAS)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert found["torch"]["version"] in text
    assert f"{found['games']['found']} of the 26 Atari games" in text


def test_doctor_names_what_is_missing_and_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    requires = ["torch>=2", 'ray>=2.40; extra == "cluster"', 'no-such-package>=1; extra == "cluster"']
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: requires)
    monkeypatch.setattr(doctor, "_is_installed", lambda package: package == "ray")
    state = doctor.examine()["optional"]["cluster"]
    assert (state["installed"], state["missing"]) == (False, ["no-such-package"])
    monkeypatch.setattr(doctor, "_checkout", lambda: None)
    assert doctor.install_command("cluster") == "pip install 'twm[cluster]'"
    text = doctor.describe(doctor.examine())
    assert "cluster  missing    twm sweep, many runs on Ray" in text
    assert "lacks no-such-package: pip install 'twm[cluster]'" in text


def test_doctor_without_games_compiler_and_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    found = doctor.examine()
    assert (found["compiler"], found["browser"], found["games"]["found"]) == (None, None, 0)
    text = doctor.describe(found)
    assert "--compile needs a C++ compiler" in text
    assert "0 of the 26 Atari games" in text
