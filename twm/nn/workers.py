"""A batch in chunks, on as many threads as PyTorch has.

To split each operation between threads, PyTorch's way, costs a barrier per operation, and a convolution in cache-sized
chunks has thousands. Here each thread takes a share of the chunks and runs every operation alone (PyTorch lets go of
the interpreter lock meanwhile): one barrier per pass, and a core that is slower or busy elsewhere takes fewer shares.
The shares do not depend on who takes them, and results come in their order: the same input gives the same output.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")

# Beyond this, threads wait for the interpreter more than they gain.
MAX_WORKERS = 8
# Shares for each thread: more even out cores of unequal speed, but each has partial sums of its own.
SHARES = 4

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
_lock = threading.Lock()


def over_chunks(batch: int, size: int, work: Callable[[Sequence[slice]], Result]) -> list[Result]:
    """Call ``work`` with shares of ``range(batch)``, slices of one length up to ``size``; the results in order.

    A batch of one chunk stays on the calling thread, where PyTorch may split the operations.
    """
    threads = _threads()
    chunks = -(-batch // size)
    if chunks > 1:
        chunks = min(-(-chunks // threads) * threads, batch)
    length = -(-batch // chunks)
    slices = [slice(start, min(start + length, batch)) for start in range(0, batch, length)]
    if threads == 1 or chunks == 1:
        return [work(slices)]
    shares = min(len(slices), SHARES * threads)
    bounds = [len(slices) * i // shares for i in range(shares + 1)]
    pool = _pool(threads)
    return [future.result() for future in [pool.submit(work, slices[a:b]) for a, b in zip(bounds, bounds[1:])]]


def alone(work: Callable[[], Result]) -> Result:
    """Call ``work`` on one worker.

    On the calling thread, PyTorch's own threads would take part, and then wait for more by spinning, which keeps the
    workers from their cores for milliseconds.
    """
    threads = _threads()
    return work() if threads == 1 else _pool(threads).submit(work).result()


def _threads() -> int:
    return min(torch.get_num_threads(), MAX_WORKERS)


def _pool(threads: int) -> ThreadPoolExecutor:
    """The pool of so many threads, started once in each process (a fork does not inherit threads)."""
    key = (os.getpid(), threads)
    with _lock:
        if key not in _pools:
            _pools[key] = _start(threads)
        return _pools[key]


def _start(threads: int) -> ThreadPoolExecutor:
    started = threading.Barrier(threads + 1)
    each = max(torch.get_num_threads() // threads, 1)

    def initialise() -> None:
        # Set for this thread once it has been asked for; until then, for all threads to come (undone below).
        torch.set_num_threads(each)
        torch.get_num_threads()
        torch.set_grad_enabled(False)
        started.wait()

    total = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, "twm-conv", initialise)
    for _ in range(threads):
        pool.submit(int)
    started.wait()
    torch.set_num_threads(total)
    return pool
