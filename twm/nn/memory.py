"""The C library's memory allocator, told what training is like."""

from __future__ import annotations

import ctypes
import sys

# From malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def tune_allocator() -> bool:
    """Keep freed memory in the process instead of handing it back; True if the C library took it (glibc on Linux).

    Training allocates the same large tensors at every update. By default each one over some megabytes is mapped afresh
    and unmapped when freed, and the kernel clears its pages each time. Call this once, before the first large tensor.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Memory in other threads' arenas is bounded and unmapped in its own way, so all share one.
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_ARENA_MAX, 1))
    return sum(mallopt(option, value) for option, value in settings) == len(settings)
