"""Names of environments: which are known, and what a mistyped one is told."""

from __future__ import annotations

import subprocess
import sys

import pytest

from twm.config import ConfigError, EnvConfig
from twm.envs import env_spec, known_games, make_env
from twm.envs.atari import ATARI_100K, games


def test_known_games() -> None:
    assert known_games()[0] == "Catch"
    assert set(ATARI_100K) < set(known_games())


def test_known_games_without_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    games.cache_clear()
    assert known_games() == ["Catch", *ATARI_100K]
    assert env_spec("Catch", EnvConfig()).num_actions == 3


@pytest.mark.parametrize("name", ["UpNDown", "upndown", "up_n_down"])
def test_case_and_underscores_do_not_matter(name: str) -> None:
    pytest.importorskip("ale_py")
    spec = env_spec(name, EnvConfig(size=32, stack=2))
    assert (spec.name, spec.num_actions, spec.observation_shape) == ("UpNDown", 6, (2, 32, 32))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Braekout", "did you mean Breakout"),
        ("cath", "did you mean Catch"),
        ("CartPol-v1", "did you mean CartPole-v1"),
        ("xyzzy", "Expected an Atari game"),
    ],
)
def test_unknown_names_are_told_the_nearest(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown environment {name!r}.*{told}"):
        make_env(name, EnvConfig(), training=True)


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "PongNoFrameskip-v4", "Pong-v0"])
def test_gymnasiums_atari_ids_are_told_the_plain_name(name: str) -> None:
    with pytest.raises(ConfigError, match=r"plain names here.*: Pong$"):
        make_env(name, EnvConfig(), training=True)


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys; from twm.config import EnvConfig; from twm.envs import make_env; "
        "print([name for name in ('torch', 'gymnasium', 'ale_py', 'cv2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
