"""A batch shared between processes: the sum of the shares, the same again, and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small import image_spec, random_batch, small, vector_spec
from torch import Tensor

from twm import child
from twm.config import Config, preset, with_options
from twm.train.learner import Learner
from twm.train.partners import SharedMemory, processes, room, shares
from twm.types import Batch, EnvSpec

CPU = torch.device("cpu")
OPTIONS: dict[str, Any] = {
    "world_model__batch_size": 9,
    "world_model__dropout": 0.1,
    "policy__batch_size": 11,
    "policy__slow_critic": 0.1,
    "policy__advantage_scale": "percentile",
}


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def learner_of(config: Config, spec: EnvSpec) -> Learner:
    torch.manual_seed(0)
    return Learner(config, spec, CPU)


def experience(config: Config, spec: EnvSpec, seed: int = 0) -> Batch:
    return random_batch(config, spec, seed=seed, terminated=[(0, 2), (6, 1)], truncated=[(1, 3), (7, 0)])


def state_of(learner: Learner) -> list[Tensor]:
    return [x.detach().clone() for m in (learner.world_model, learner.policy) for x in m.state_dict().values()]


def update_in_turn(learner: Learner, batch: Batch) -> dict[str, Tensor]:
    """What two processes do, by one: both shares one after the other, the second from the seed a partner would get."""
    B, M = learner.config.world_model.batch_size, learner.config.policy.batch_size
    rows, dreams = shares(B, 2), shares(M, 2)
    parts = [Batch(*(x[part] for x in batch)) for part in rows]

    def in_turn(own: Any, partners: Any) -> tuple[Any, Any]:
        seed = int(torch.randint(2**62, ()))
        first = own()
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        second = partners()
        torch.set_rng_state(state)
        return first, second

    def gradients(part: int) -> Any:
        return learner.world_model_gradients(parts[part], len(parts[part].a) / B)

    (first, own_starts), (second, starts) = in_turn(lambda: gradients(0), lambda: gradients(1))
    facts = {name: first[name] * (4 / 9) + second[name] * (5 / 9) for name in first}
    for name in ("observation", "dynamics"):
        facts[f"grad/{name}"] = learner.optimisers[name].step()
    dreamed = in_turn(lambda: learner.dream_from(own_starts, 5), lambda: learner.dream_from(starts, 6))
    weights = [(part.stop - part.start) / M for part in dreams]
    one, two = in_turn(*(partial(learner.policy_gradients, *both) for both in zip(dreamed, weights)))
    facts |= {name: one[name] * weights[0] + two[name] * weights[1] for name in one}
    for name in ("actor", "critic"):
        facts[f"grad/{name}"] = learner.optimisers[name].step()
    learner.policy.after_update(facts["policy/return_range"])
    return facts


@pytest.mark.parametrize("spec", [vector_spec(), image_spec()], ids=["numbers", "pictures"])
def test_two_processes_do_what_one_would_do_in_turn(two_threads: None, spec: EnvSpec) -> None:
    """Three updates: weights, slow critic, range of returns and everything reported."""
    config = small(**OPTIONS, world_model__encoder="conv")
    together, alone = learner_of(config, spec), learner_of(config, spec)
    try:
        torch.manual_seed(7)
        reports = [together.update(experience(config, spec, seed)) for seed in range(3)]
        assert together.team is not None
        assert together.team.count == 2
        torch.set_num_threads(1)
        torch.manual_seed(7)
        expected = [update_in_turn(alone, experience(config, spec, seed)) for seed in range(3)]
    finally:
        together.close()
    for report, one in zip(reports, expected):
        assert report.keys() == one.keys()
        for name in report:
            torch.testing.assert_close(report[name], one[name], rtol=1e-5, atol=1e-6)
    for x, y in zip(state_of(together), state_of(alone)):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


def test_the_same_again_also_after_a_restart(two_threads: None) -> None:
    """Bit for bit: twice the same run, and one that is saved, loaded by another learner and goes on."""
    config, spec = small(**OPTIONS), vector_spec()
    results = []
    for interrupted in (False, False, True):
        learner = learner_of(config, spec)
        torch.manual_seed(7)
        for seed in range(4):
            if seed == 2 and interrupted:
                state = {name: dict(part) for name, part in learner.state().items()}
                random = torch.get_rng_state()
                learner.close()
                learner = Learner(config, spec, CPU)
                learner.load_state(state)
                torch.set_rng_state(random)
            learner.update(experience(config, spec, seed))
        results.append(state_of(learner))
        learner.close()
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other, strict=True))


def test_optimisers_wait_for_no_threads(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run while each process has its share; afterwards all threads are there again."""
    config, spec = small(**OPTIONS), vector_spec()
    learner, threads = learner_of(config, spec), []
    for optimiser in learner.optimisers.values():
        step = optimiser.step
        monkeypatch.setattr(optimiser, "step", lambda step=step: threads.append(torch.get_num_threads()) or step())
    learner.update(experience(config, spec))
    learner.close()
    assert threads == [1] * 4
    assert torch.get_num_threads() == 2


def test_a_partner_that_ends_is_an_error(two_threads: None) -> None:
    config, spec = small(**OPTIONS), vector_spec()
    learner = learner_of(config, spec)
    learner.update(experience(config, spec))
    assert learner.team is not None
    (partner,) = learner.team._partners
    os.kill(partner._process.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="a training process has ended"):
        learner.update(experience(config, spec))
    learner.close()
    learner.update(experience(config, spec))  # with a new one
    learner.close()


def test_a_partners_error_is_told(two_threads: None) -> None:
    config, spec = small(**OPTIONS), vector_spec()
    learner = learner_of(config, spec)
    learner.update(experience(config, spec))
    wrong = experience(config, spec)
    wrong.a[-1, -1] = 1_000  # the last row is the partner's
    with pytest.raises(RuntimeError, match="a training process failed: IndexError"):
        learner.update(wrong)
    learner.close()


def test_no_partner_outlives_the_learner(two_threads: None) -> None:
    """Not even one whose process is killed."""
    code = """
import sys, time, torch
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(2)
from small import random_batch, small, vector_spec
from twm.train.learner import Learner
config = small(world_model__batch_size=8, policy__batch_size=8)
learner = Learner(config, vector_spec(), torch.device("cpu"))
learner.update(random_batch(config, vector_spec()))
print(learner.team._partners[0]._process.pid, flush=True)
time.sleep(60)
"""
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parent = subprocess.Popen([sys.executable, "-c", code, tests], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] == "Z":  # nobody waits for an orphan here
            return
        time.sleep(0.05)
    pytest.fail(f"partner {pid} still runs")


@pytest.mark.parametrize(
    ("threads", "options", "expected"),
    [
        (1, {}, 1),
        (2, {}, 2),
        (64, {}, 8),  # not more than were tried
        (64, {"world_model.batch_size": 13}, 3),  # at least four sequences each
        (2, {"policy.batch_size": 7}, 1),
    ],
)
def test_how_many_processes(threads: int, options: dict[str, Any], expected: int) -> None:
    torch.set_num_threads(threads)
    try:
        assert processes(with_options(preset("paper"), options), CPU) == expected
        assert processes(with_options(preset("paper"), options), torch.device("cuda")) == 1
    finally:
        torch.set_num_threads(1)


def test_shares_cover_all_rows() -> None:
    assert shares(9, 2) == [slice(0, 4), slice(4, 9)]
    assert [row for part in shares(23, 5) for row in range(23)[part]] == list(range(23))


def test_shared_memory_keeps_shapes_and_strides() -> None:
    weights = [torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last), torch.ones(5, dtype=torch.bool)]
    with child.shared_file() as file:
        os.ftruncate(file, room(weights))
        here, there = SharedMemory(file), SharedMemory(file)
    for weight in weights:
        mine = here.take(weight).copy_(weight)
        theirs = there.take(weight)
        assert torch.equal(theirs, weight)
        assert mine.stride() == weight.stride()
        assert mine.data_ptr() != theirs.data_ptr()
        assert theirs.data_ptr() % 64 == 0
