"""What every test gets: shape annotations checked, one thread, repeatable examples, a browser where one is needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before torch is loaded, and for child processes too: tests run several at a time, one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jaxtyping

# From here on every function of these packages checks its arguments and result against its shape annotations,
# Float[Tensor, "B T D"]. Users do not pay for it: the hook is switched on nowhere else.
jaxtyping.install_import_hook(
    ["twm.nn", "twm.world_model", "twm.policy", "twm.imagination", "twm.agent", "twm.types"], "shape_checks.check"
)

import pytest
import torch
from hypothesis import settings

from twm.doctor import find_browser

torch.set_num_threads(1)
# The same examples in every run: a red test is red for everyone. No deadline: the machine may be busy.
settings.register_profile("twm", deadline=None, derandomize=True)
settings.load_profile("twm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first: one that begins last would leave the other workers idle."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="module")
def unchecked_shapes() -> Iterator[None]:
    """Shape checks off, for what traces Python itself (torch.compile, torch.export)."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two seconds: for what reads run directories, not for what an agent should have learned."""
    from small import small

    from twm.train.loop import train

    out = tmp_path_factory.mktemp("runs") / "small"
    budget = {"samples": 2_000, "pretrain_samples": 800, "prefill": 60, "final_episodes": 2, "eval_episodes": 2}
    intervals = {"eval_every": 80, "log_every": 20, "checkpoint_every": 50}
    config = small(**{f"train__{name}": value for name, value in {**budget, **intervals}.items()}, threads=1)
    train(config, out, quiet=True)
    return out


@pytest.fixture(scope="session")
def browser_path() -> str:
    """Chromium. Without one the test is skipped, unless TWM_REQUIRE_BROWSER=1 (continuous integration) forbids that."""
    path = find_browser()
    if path is None and os.environ.get("TWM_REQUIRE_BROWSER") == "1":
        pytest.fail("no Chromium found, but TWM_REQUIRE_BROWSER=1 makes the browser tests mandatory")
    if path is None:
        pytest.skip("no Chromium found: the browser tests need one (Debian: apt-get install chromium)")
    return path
