from __future__ import annotations

import errno
import io
import math
import time
from collections import deque
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twm.config import ConfigError
from twm.replay import Replay, draw_balanced
from twm.types import EnvSpec, FrameArray

GRAY = EnvSpec("gray", (1, 2, 2), 4, ("NOOP", "LEFT", "RIGHT"))
COLOUR = EnvSpec("colour", (3, 2, 2), 2, ("NOOP", "LEFT", "RIGHT"))
VECTOR = EnvSpec("vector", (3,), 3, ("NOOP", "LEFT", "RIGHT"))
ATARI = EnvSpec("atari", (1, 64, 64), 4, ("NOOP", "FIRE"))


class Story:
    """The plain way: whole stacks in lists, put together by a deque as an environment does."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self.o: list[FrameArray] = []
        self.steps: list[tuple[int, float, bool, bool]] = []
        self._stack: deque[FrameArray] = deque(maxlen=spec.stack)

    def append(self, frame: FrameArray, a: int, r: float, terminated: bool, truncated: bool) -> None:
        if not self.steps or self.steps[-1][2] or self.steps[-1][3]:
            self._stack.extend([frame] * self.spec.stack)
        else:
            self._stack.append(frame)
        self.o.append(np.concatenate(list(self._stack)))
        self.steps.append((a, r, terminated, truncated))


def frame_of(spec: EnvSpec, number: int) -> FrameArray:
    """A frame unlike any other: its numbers say which one it is."""
    values = (number * 31 + np.arange(math.prod(spec.frame_shape)) * 7) % 251
    return values.reshape(spec.frame_shape).astype(np.uint8 if spec.is_image else np.float32)


def tell(replay: Replay | Story, ends: list[int], first: int = 0) -> None:
    """Append one entry for each of ``ends``: 0 the episode goes on, 1 terminated, 2 truncated, 3 both."""
    for t, end in enumerate(ends, start=first):
        replay.append(frame_of(replay.spec, t), t % 3, t / 4, bool(end & 1), bool(end & 2))


def in_memory(spec: EnvSpec, ends: list[int]) -> tuple[Replay, Story]:
    replay, story = Replay.create(None, spec, max(1, len(ends))), Story(spec)
    tell(replay, ends)
    tell(story, ends)
    return replay, story


def same_experience(replay: Replay, twin: Replay) -> None:
    everything = np.arange(len(twin))
    assert len(replay) == len(twin)
    np.testing.assert_array_equal(replay.observations(everything), twin.observations(everything))
    np.testing.assert_array_equal(replay.is_episode_start, twin.is_episode_start)
    np.testing.assert_array_equal(replay.visits, twin.visits)
    for mine, other in zip(replay.sequence(1, len(twin) - 2), twin.sequence(1, len(twin) - 2), strict=True):
        np.testing.assert_array_equal(mine, other)


specs = st.sampled_from([GRAY, COLOUR, VECTOR])
endings = st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=1, max_size=40)


# --- Storage


@given(specs, endings)
@settings(deadline=None)
def test_observations_equal_the_environments_stacks(spec: EnvSpec, ends: list[int]) -> None:
    """Stacks never mix episodes: all of them equal the plain implementation's."""
    replay, story = in_memory(spec, ends)
    o = replay.observations(np.arange(len(ends)))
    assert o.shape == (len(ends), *spec.observation_shape)
    assert o.dtype == story.o[0].dtype
    np.testing.assert_array_equal(o, np.stack(story.o))
    begins = [t == 0 or ends[t - 1] > 0 for t in range(len(ends))]
    assert replay.is_episode_start.tolist() == begins


@given(specs, endings, st.integers(1, 6), st.integers(1, 8), st.sampled_from([0.5, 20.0, math.inf]), st.integers(0, 99))
@settings(deadline=None)
def test_batches_equal_the_stories_slices(
    spec: EnvSpec, ends: list[int], batch_size: int, length: int, temperature: float, seed: int
) -> None:
    """Starts lie in 1..len-T-1 and differ; every array of the batch is the slice t-1..t+T(+1) of what happened."""
    replay, story = in_memory(spec, ends)
    assert replay.starts(length) == max(0, len(ends) - length - 1)
    rng = np.random.default_rng(seed)
    if replay.starts(length) < batch_size:
        with pytest.raises(ConfigError):
            replay.sample(batch_size, length, temperature, rng)
        return
    batch, starts = replay.sample(batch_size, length, temperature, rng)
    assert len(set(starts.tolist())) == batch_size
    assert starts.min() >= 1
    assert starts.max() <= len(ends) - length - 1
    np.testing.assert_array_equal(np.flatnonzero(replay.visits), np.sort(starts))
    for i, t in enumerate(starts):
        np.testing.assert_array_equal(batch.o[i], np.stack(story.o[t - 1 : t + length + 1]))
        steps = story.steps[t - 1 : t + length]
        got = zip(batch.a[i], batch.r[i], batch.terminated[i], batch.truncated[i], strict=True)
        assert [tuple(x.item() for x in step) for step in got] == steps
    assert [x.dtype for x in batch[1:]] == [np.int64, np.float32, np.bool_, np.bool_]


def test_stack_by_hand() -> None:
    """Episodes [0 1] [2 3 4], stack 3: o_1 = 0 0 1, o_2 = 2 2 2, o_4 = 2 3 4."""
    spec = EnvSpec("numbers", (1, 1, 1), 3, ("NOOP",))
    replay = Replay.create(None, spec, 5)
    for t in range(5):
        replay.append(np.full((1, 1, 1), t, np.uint8), 0, 0.0, t == 1, False)
    o = replay.observations(np.array([[0, 1], [2, 4]]))
    assert o.shape == (2, 2, 3, 1, 1)
    assert o[..., 0, 0].tolist() == [[[0, 0, 0], [0, 0, 1]], [[2, 2, 2], [2, 3, 4]]]


def test_sequences_do_not_count_and_refuse_invalid_starts() -> None:
    replay, _ = in_memory(GRAY, [0] * 10)
    assert replay.sequence(1, 8).o.shape == (1, 10, 4, 2, 2)
    assert not replay.visits.any()
    for start, length in ((0, 4), (2, 8), (6, 4)):
        with pytest.raises(IndexError, match=r"start in 1\.\."):
            replay.sequence(start, length)
    for index in (-1, 10):
        with pytest.raises(IndexError, match=r"entries 0\.\.9"):
            replay.observations(index)


def test_100_000_interactions_take_less_than_450_mb(tmp_path: Path) -> None:
    """Space is taken as entries are written: 60 frames of 4 KB (and block rounding) long before 100,000."""
    replay = Replay.create(tmp_path, ATARI, 100_000)
    files = [path.stat() for path in tmp_path.iterdir()]
    counts = 2 * 4 * 100_000  # visits and steps since the episode's start, in memory
    assert sum(file.st_size for file in files) + counts <= 450e6
    assert sum(file.st_blocks * 512 for file in files) < 64 * 1024
    for _ in range(60):
        replay.append(np.ones((1, 64, 64), np.uint8), 0, 0.0, False, False)
    replay.flush()
    used = sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())
    assert 60 * 4096 <= used < 60 * 4096 + 128 * 1024


def test_columns_and_cut() -> None:
    """A cut truncates the last episode, so that what follows begins one; twice changes nothing."""
    replay, _ = in_memory(GRAY, [0, 1, 0, 2, 0])
    assert replay.rewards.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert replay.ended.tolist() == [False, True, False, True, False]
    replay.cut()
    assert replay.ended.tolist() == [False, True, False, True, True]
    assert replay.sequence(3, 1).truncated.tolist() == [[False, True]]


def test_cut_on_disk_begins_an_episode(tmp_path: Path) -> None:
    replay = Replay.create(tmp_path, GRAY, 8)
    replay.cut()
    tell(replay, [0, 0, 0])
    replay.cut()
    replay.cut()
    tell(replay, [0], first=3)
    assert replay.is_episode_start.tolist() == [True, False, False, True]
    same_experience(Replay.open(tmp_path, GRAY, 4, None, 8), replay)


def test_create_replaces_what_a_lost_run_left(tmp_path: Path) -> None:
    tell(Replay.create(tmp_path, GRAY, 8), [0, 1, 0])
    replay = Replay.create(tmp_path, VECTOR, 5)
    assert len(replay) == 0
    tell(replay, [0, 0, 0])
    same_experience(replay, in_memory(VECTOR, [0, 0, 0])[0])


def test_files_are_plain_npy(tmp_path: Path) -> None:
    tell(Replay.create(tmp_path, GRAY, 8), [0, 1, 0])
    frames, steps = np.load(tmp_path / "frames.npy", mmap_mode="r"), np.load(tmp_path / "steps.npy", mmap_mode="r")
    np.testing.assert_array_equal(frames[2], frame_of(GRAY, 2))
    assert steps[:3]["terminated"].tolist() == [False, True, False]


@given(specs, endings, endings, endings, st.integers(0, 20))
@settings(deadline=None, max_examples=40)
def test_resume_after_a_crash_equals_a_twin(
    tmp_path_factory: pytest.TempPathFactory,
    spec: EnvSpec,
    saved: list[int],
    lost: list[int],
    again: list[int],
    more: int,
) -> None:
    """Entries written after the checkpoint are forgotten, counts return, and the capacity may grow."""
    directory = tmp_path_factory.mktemp("replay")
    saved = [0, 0, 0, *saved]
    replay = Replay.create(directory, spec, 100)
    twin = Replay.create(None, spec, 120)
    for one in (replay, twin):
        tell(one, saved)
        one.sample(1, 1, 20.0, np.random.default_rng(0))
    replay.flush()
    checkpoint = len(replay), replay.visits.copy()
    tell(replay, lost, first=1000)
    replay.sample(2, 1, 20.0, np.random.default_rng(1))

    resumed = Replay.open(directory, spec, *checkpoint, capacity=100 + more)
    assert resumed.capacity == 100 + more
    same_experience(resumed, twin)
    for one in (resumed, twin):
        tell(one, again, first=len(saved))
    same_experience(resumed, twin)
    rngs = np.random.default_rng(2), np.random.default_rng(2)
    for _ in range(3):
        for mine, other in zip(resumed.sample(2, 1, 3.0, rngs[0])[0], twin.sample(2, 1, 3.0, rngs[1])[0], strict=True):
            np.testing.assert_array_equal(mine, other)
    same_experience(resumed, twin)


def test_resume_fills_a_grown_capacity(tmp_path: Path) -> None:
    replay = Replay.create(tmp_path, GRAY, 9)  # 9 → 1,000: the header's shape gets longer
    tell(replay, [0, 1] * 4)
    resumed = Replay.open(tmp_path, GRAY, 8, None, 1_000)
    tell(resumed, [0, 1] * 496, first=8)
    same_experience(resumed, in_memory(GRAY, [0, 1] * 500)[0])
    smaller = Replay.open(tmp_path, GRAY, 500, None, 500)
    assert len(smaller) == 500
    assert smaller.capacity == 1_000


# --- Sampling

VISITS = np.array([0, 1, 2, 5, 9, 30], np.int32)


def chi_squared(observed: npt.NDArray[np.int64], p: npt.NDArray[np.float64]) -> float:
    expected = p * observed.sum()
    return float(((observed - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [2.0, 20.0, math.inf])
def test_frequencies_match_the_formula(temperature: float) -> None:
    """All ordered pairs: P(i, then j) = p_i p_j / (1 - p_i), p = softmax(-v / τ). The 99.9 % point of χ² with
    29 degrees of freedom is 58.3."""
    rng = np.random.default_rng(0)
    w = np.exp(-VISITS / temperature)
    p = w / w.sum()
    pairs = p[:, None] * p[None, :] / (1 - p[:, None])
    different = ~np.eye(6, dtype=np.bool_)
    observed = np.zeros((6, 6), np.int64)
    for _ in range(15_000):
        i, j = draw_balanced(VISITS, 2, temperature, rng)
        observed[i, j] += 1
    assert not observed[~different].any()
    enough = different & (pairs * 15_000 > 5)  # χ² needs an expectation of a few in each cell
    assert pairs[different].sum() == pytest.approx(1)
    statistic = chi_squared(observed[enough], pairs[enough] / pairs[enough].sum())
    assert statistic < 58.3
    assert observed[different & ~enough].sum() <= 40


def test_replay_samples_by_its_visits() -> None:
    """One start at a time: the frequencies follow the counts as they were set. 99.9 % point of χ²₄: 18.5."""
    replay, _ = in_memory(GRAY, [0] * 8)  # T = 2: starts 1..5
    counts = np.array([7, 0, 3, 10, 20, 6, 7, 7], np.int32)
    rng = np.random.default_rng(1)
    observed = np.zeros(5, np.int64)
    for _ in range(5_000):
        replay.visits[:] = counts
        _, starts = replay.sample(1, 2, 10.0, rng)
        observed[starts[0] - 1] += 1
    w = np.exp(-counts[1:6] / 10.0)
    assert chi_squared(observed, w / w.sum()) < 18.5


def test_extreme_temperatures_neither_overflow_nor_stall() -> None:
    """τ → 0 takes the least visited, in order, however far apart the counts are."""
    rng = np.random.default_rng(0)
    visits = np.array([2**31 - 1, 3, 0, 2**30, 1, 2**31 - 2], np.int32)
    with np.errstate(all="raise", divide="ignore"):
        assert draw_balanced(visits, 6, 1e-3, rng).tolist() == [2, 4, 1, 3, 5, 0]
    assert sorted(draw_balanced(visits, 6, 1e12, rng).tolist()) == [0, 1, 2, 3, 4, 5]


def test_counting_can_be_left_out() -> None:
    replay, _ = in_memory(GRAY, [0] * 20)
    replay.sample(5, 4, 20.0, np.random.default_rng(0), count=False)
    assert replay.visits.sum() == 0
    replay.sample(5, 4, 20.0, np.random.default_rng(0))
    assert replay.visits.sum() == 5


def test_same_generator_same_batches_on_disk_and_in_memory(tmp_path: Path) -> None:
    ends = [0, 0, 0, 1, 0, 2] * 10
    on_disk = Replay.create(tmp_path, GRAY, 60)
    tell(on_disk, ends)
    twin, _ = in_memory(GRAY, ends)
    rngs = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(20):
        assert on_disk.sample(8, 4, 2.0, rngs[0])[1].tolist() == twin.sample(8, 4, 2.0, rngs[1])[1].tolist()
    same_experience(on_disk, twin)


# --- Errors: what was expected, what came, what to do


def test_too_few_steps_for_a_batch() -> None:
    replay, _ = in_memory(GRAY, [0] * 120)
    with pytest.raises(ConfigError) as error:
        replay.sample(104, 16, 20.0, np.random.default_rng(0))
    assert str(error.value) == (
        "replay holds 120 steps, but a training batch needs 121 (104 different sequences of 16, a step in front and "
        "one behind)\n  collect more first (--train.prefill) or lower --world-model.batch-size"
    )
    replay.sample(103, 16, 20.0, np.random.default_rng(0))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_bad_temperature(temperature: float) -> None:
    with pytest.raises(ConfigError, match=r"must be above 0, got .*\n.*--replay\.temperature"):
        in_memory(GRAY, [0] * 20)[0].sample(2, 4, temperature, np.random.default_rng(0))


def test_bad_entries() -> None:
    replay = Replay.create(None, GRAY, 1)
    with pytest.raises(ConfigError, match=r"shape \(1, 2, 2\) and type uint8, got \(4, 2, 2\) uint8\n.*not the stack"):
        replay.append(np.zeros((4, 2, 2), np.uint8), 0, 0.0, False, False)
    with pytest.raises(ConfigError, match=r"uint8, got .* float32"):
        replay.append(np.zeros((1, 2, 2), np.float32), 0, 0.0, False, False)
    with pytest.raises(ConfigError, match=r"action in 0\.\.2 for gray, got 3"):
        replay.append(frame_of(GRAY, 0), 3, 0.0, False, False)
    assert len(replay) == 0
    tell(replay, [0])
    with pytest.raises(ConfigError, match=r"full: it was made for 1 entries\n.*--train\.interactions"):
        tell(replay, [0])
    with pytest.raises(ConfigError, match="at least 1 entry, got 0"):
        Replay.create(None, GRAY, 0)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    def resume(
        length: int = 5, spec: EnvSpec = GRAY, visits: npt.NDArray[np.int32] | None = None, capacity: int = 10
    ) -> Replay:
        return Replay.open(tmp_path, spec, length, visits, capacity)

    with pytest.raises(ConfigError, match=r"frames\.npy is missing"):
        resume()
    tell(Replay.create(tmp_path, GRAY, 10), [0] * 5)
    with pytest.raises(ConfigError, match=r"uint8 rows of shape \(1, 2, 2\), but uint8 of \(3, 2, 2\) were expected"):
        resume(spec=COLOUR)
    with pytest.raises(ConfigError, match=r"but float32 of \(3,\) were expected"):
        resume(spec=VECTOR)
    with pytest.raises(ConfigError, match="room for 10 entries, but the checkpoint counts 11"):
        resume(length=11, capacity=20)
    with pytest.raises(ConfigError, match="5 entries does not fit into a capacity of 4"):
        resume(capacity=4)
    with pytest.raises(ConfigError, match=r"needs as many visit counts, got shape \(4,\)"):
        resume(visits=np.zeros(4, np.int32))
    assert len(resume()) == 5

    frames = tmp_path / "frames.npy"
    whole = frames.read_bytes()
    for broken in (whole[:-1], whole[:50], b"", b"something else entirely" * 10):
        frames.write_bytes(broken)
        with pytest.raises(ConfigError, match=rf"frames\.npy is damaged or cut short .*{len(broken)} bytes"):
            resume()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_an_error_not_a_signal(tmp_path: Path) -> None:
    replay = Replay.create(tmp_path, ATARI, 1_000)
    replay.append(np.ones((1, 64, 64), np.uint8), 0, 0.0, False, False)
    replay._frames._file = io.FileIO("/dev/full", "r+b")
    with pytest.raises(
        OSError, match=r"entry 1 of the replay .* No space left on device; make room for 4\.1 MB"
    ) as error:
        replay.append(np.ones((1, 64, 64), np.uint8), 0, 0.0, False, False)
    assert error.value.errno == errno.ENOSPC
    assert len(replay) == 1
    assert replay.observations(0).all()


def test_nothing_is_written_after_close(tmp_path: Path) -> None:
    replay = Replay.create(tmp_path, GRAY, 4)
    replay.close()
    with pytest.raises(ValueError, match="closed"):
        tell(replay, [0])


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize(("entries", "limit"), [(100_000, 0.020), (1_000_000, 0.040)])
def test_a_batch_is_drawn_in_time(tmp_path: Path, entries: int, limit: float) -> None:
    """Processor time for 100 sequences of 16 with stacks of 4 frames of 64x64. The files are holes, so no disk
    space is taken; the first round brings them into memory, where a running training finds them."""
    Replay.create(tmp_path, ATARI, entries).close()
    visits = np.random.default_rng(0).integers(0, 200, entries).astype(np.int32)
    replay = Replay.open(tmp_path, ATARI, entries, visits, entries)
    durations = []
    for _ in range(15):
        for seed in range(2):
            begun = time.process_time()
            replay.sample(100, 16, 20.0, np.random.default_rng(seed), count=False)
            durations.append(time.process_time() - begun)
    assert min(durations) <= limit
