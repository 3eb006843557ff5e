"""Batches in chunks on several threads: nothing left out, nothing twice, results in order, settings restored."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
import torch

from twm.nn.workers import alone, over_chunks


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("batch", [1, 2, 7, 100])
@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_every_image_once_and_in_order(threads: int, batch: int, size: int) -> None:
    def work(slices: Sequence[slice]) -> list[range]:
        return [range(batch)[s] for s in slices]

    chunks = [chunk for share in over_chunks(batch, size, work) for chunk in share]
    assert [i for chunk in chunks for i in chunk] == list(range(batch))
    assert all(0 < len(chunk) <= size for chunk in chunks)
    assert len({len(chunk) for chunk in chunks[:-1]}) <= 1  # one workspace serves all but the last


def test_workers_compute_alone_and_without_gradients(threads: int) -> None:
    """A worker that let PyTorch split its operations would have as many threads again in its way."""

    def work(slices: Sequence[slice]) -> tuple[int, bool, int]:
        torch.ones(100_000).add_(1)
        return torch.get_num_threads(), torch.is_grad_enabled(), threading.get_ident()

    results = over_chunks(64, 1, work)
    assert torch.get_num_threads() == threads
    if threads > 1:
        assert {(n, grad) for n, grad, _ in results} == {(1, False)}
        assert threading.get_ident() not in {thread for *_, thread in results}


def test_alone(threads: int) -> None:
    assert alone(torch.get_num_threads) == 1


def test_one_chunk_stays_here(threads: int) -> None:
    assert over_chunks(5, 8, lambda slices: threading.get_ident()) == [threading.get_ident()]
