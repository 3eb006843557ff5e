"""conv_passes.c from Python: the passes over memory around a convolution's products, for float32 on a CPU.

What they compute is what :class:`twm.nn.conv_cpu.Workspace` does without them, one PyTorch call for each pass.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from twm import native
from twm.nn.conv_plan import Plan

SOURCE = Path(__file__).with_suffix(".c")


class _Plan(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("n", "rows", "columns", "taps", "kernel", "stride", "wide", "narrow")]


class _Copy(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("n", "rows", "floats")),
        *((name, ctypes.c_ssize_t) for name in ("from_image", "from_row", "to_image", "to_row")),
    ]


class Passes:
    """Of a plan, for n images."""

    def __init__(self, library: ctypes.CDLL, plan: Plan, n: int) -> None:
        self._library = library
        y, x = plan.rows, plan.columns
        taps = y.taps if plan.winograd else 0
        self._plan = _Plan(n, y.windows, x.windows, taps, y.kernel, y.stride, plan.wide, plan.narrow)

    @classmethod
    def of(cls, plan: Plan, n: int, like: Tensor) -> Passes | None:
        """None where the C file cannot be had, or the numbers are not single precision."""
        library = native.load(SOURCE)
        return cls(library, plan, n) if library is not None and like.dtype == torch.float32 else None

    def analyse(self, wide: Tensor, points: Tensor) -> None:
        """V"""
        self._library.analyse(ctypes.byref(self._plan), _pointer(wide), _pointer(points))

    def synthesise(self, points: Tensor, wide: Tensor) -> None:
        """Vᵀ"""
        self._library.synthesise(ctypes.byref(self._plan), _pointer(points), _pointer(wide))

    def spread(self, narrow: Tensor, points: Tensor) -> None:
        """U"""
        self._library.spread(ctypes.byref(self._plan), _pointer(narrow), _pointer(points))

    def collect(self, points: Tensor, narrow: Tensor) -> None:
        """Uᵀ"""
        self._library.collect(ctypes.byref(self._plan), _pointer(points), _pointer(narrow))

    def fill(self, out: Tensor, images: Tensor, before: Tensor | None) -> None:
        """The images or, with ``before``, which is laid out as they are, images · d silu(before)."""
        self._library.fill(_copy(images, out), _pointer(images), _pointer(before), _pointer(out))

    def finish(self, images: Tensor, bias_row: Tensor, before: Tensor, out: Tensor, activation: bool) -> None:
        """images + bias into ``before`` and, if asked, its activation into ``out``; the two may be one."""
        call = self._library.finish
        call(_copy(images, out), _pointer(images), _pointer(bias_row), activation, _pointer(before), _pointer(out))


def _copy(source: Tensor, target: Tensor) -> object:
    """Between (n, H, W, C) whose rows (W, C) lie together."""
    n, rows, columns, channels = target.shape
    return ctypes.byref(_Copy(n, rows, columns * channels, *source.stride()[:2], *target.stride()[:2]))


def _pointer(x: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if x is None else x.data_ptr())
