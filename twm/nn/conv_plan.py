"""How a convolution becomes matrix products on a CPU.

A convolution maps its *wide* side (n, H, W, C) to its *narrow* side (n, h, w, O); a transposed convolution goes back.
Every fast algorithm for it has the bilinear form

    narrow = Uᵀ [ (V wide) · (T weight) ]                                                   convolution

with linear maps V, U, T around P independent matrix products (M, K) x (K, O). Its adjoints are all the rest:

    wide   = Vᵀ [ (U narrow) · (T weight)ᵀ ]        transposed convolution, gradient of a convolution's input
    weight = Tᵀ [ (V wide)ᵀ · (U narrow) ]          gradient of the weight, with the one or the other side a gradient

so V, Vᵀ, U, Uᵀ, T, Tᵀ serve all six passes of the two layers. Each is a map along the rows after one along the columns
(:class:`Axis`), and there are two kinds:

direct      P = 1: V gathers windows of ``kernel`` positions, Vᵀ adds them up where they overlap, U and T do nothing.
Winograd    F(2, r), minimal filtering (Winograd 1980; Lavin and Gray 2016) with r = kernel / stride taps, the stride
            made into channels: r + 1 products give 2 outputs, where 2r are due. V and U only add and subtract.
            In both dimensions, kernel 4 and stride 2 take 9/16 of the multiplications, kernel 6 takes 16/36.

Rounding differs from the direct sum in the last digits only: the tables hold no factors but ±1 and ½.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

Factor = int | float
Terms = list[tuple[Tensor, Factor]]
"""A linear combination: tensors of one shape and their factors."""
Step = tuple[Tensor, Terms]
"""Where a linear combination is written."""

Table = list[list[Factor]]
# F(2, r): the rows of V over r + 1 inputs, of U over 2 outputs, of T over r taps, one row for each point. Together they
# give y₀ = Σ w_i x_i and y₁ = Σ w_i x_{i+1} as y = Uᵀ[(V x) ⊙ (T w)].
WINOGRAD: dict[int, tuple[Table, Table, Table]] = {
    2: (
        [[1, -1, 0], [0, 1, 0], [0, -1, 1]],
        [[1, 0], [1, 1], [0, 1]],
        [[1, 0], [1, 1], [0, 1]],
    ),
    3: (
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]],
        [[1, 0], [1, 1], [1, -1], [0, 1]],
        [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]],
    ),
}


@dataclass(frozen=True)
class Axis:
    """One dimension of a convolution and the algorithm for it."""

    kernel: int
    stride: int
    padding: int
    wide: int
    narrow: int
    winograd: bool

    @property
    def taps(self) -> int:
        """r: the length of the kernel in strides."""
        return -(-self.kernel // self.stride)

    @property
    def points(self) -> int:
        """Products per window (its factor of P)."""
        return self.taps + 1 if self.winograd else 1

    @property
    def windows(self) -> int:
        """Windows along this dimension (its factor of M): one for each output, or for each two."""
        return -(-self.narrow // 2) if self.winograd else self.narrow

    @property
    def depth(self) -> int:
        """Positions of a window that a matrix product sums over (its factor of K)."""
        return self.stride if self.winograd else self.kernel

    @property
    def wide_extent(self) -> int:
        """Wide positions that the windows cover, padding included."""
        if self.winograd:
            return self.stride * (2 * self.windows + self.taps - 1)
        return (self.narrow - 1) * self.stride + self.kernel

    @property
    def narrow_extent(self) -> int:
        """Narrow positions that the windows cover."""
        return 2 * self.windows if self.winograd else self.narrow

    def analyse(self, wide: Tensor, dim: int) -> list[Terms]:
        """V: for each point, what gives (..., windows, depth, ...) from (..., wide extent, ...)."""
        if not self.winograd:
            return [[(_windows(wide, dim, 0, self.windows, self.stride, self.kernel), 1)]]
        s = self.stride
        groups = [_windows(wide, dim, j * s, self.windows, 2 * s, s) for j in range(self.points)]
        return [_terms(row, groups) for row in WINOGRAD[self.taps][0]]

    def synthesise(self, points: Tensor, wide: Tensor, dim: int) -> Iterator[Step]:
        """Vᵀ: what gives (..., wide extent, ...) from points (P, ..., windows, depth, ...), windows at ``dim``."""
        s = self.stride
        if self.winograd:
            columns = list(zip(*WINOGRAD[self.taps][0]))
            for parity in range(2):
                shifted = [_terms(column, points) for column in columns[parity::2]]
                slots = _windows(wide, dim, parity * s, self.windows + len(shifted) - 1, 2 * s, s)
                yield from _overlap(slots, shifted, dim)
            return
        whole, part = divmod(self.kernel, s)
        for start, stop, count in ((0, part, whole + 1), (part, s, whole)):
            if start < stop and count:
                blocks = [points[0].narrow(dim + 1, u * s + start, stop - start) for u in range(count)]
                slots = _windows(wide, dim, start, self.windows + count - 1, s, stop - start)
                yield from _overlap(slots, [[(block, 1)] for block in blocks], dim)

    def spread(self, narrow: Tensor, dim: int) -> list[Terms]:
        """U: for each point, what gives (..., windows, ...) from (..., narrow extent, ...)."""
        if not self.winograd:
            return [[(narrow, 1)]]
        pair = _windows(narrow, dim, 0, self.windows, 2, 2).unbind(dim + 1)
        return [_terms(row, pair) for row in WINOGRAD[self.taps][1]]

    def collect(self, points: Tensor, narrow: Tensor, dim: int) -> Iterator[Step]:
        """Uᵀ: what gives (..., narrow extent, ...) from points (P, ..., windows, ...)."""
        if not self.winograd:
            yield narrow, [(points[0], 1)]
            return
        pair = _windows(narrow, dim, 0, self.windows, 2, 2).unbind(dim + 1)
        for out, column in zip(pair, zip(*WINOGRAD[self.taps][1])):
            yield out, _terms(column, points)

    def transform(self, weight: Tensor, dim: int) -> Tensor:
        """T: (P, ..., depth, ...) from (..., kernel, ...)."""
        if not self.winograd:
            return weight.unsqueeze(0)
        rows = WINOGRAD[self.taps][2]
        taps = weight.unflatten(dim, (self.taps, self.stride)).unbind(dim)
        out = weight.new_empty(len(rows), *taps[0].shape)
        run([(o, _terms(row, taps)) for o, row in zip(out, rows)])
        return out

    def transform_adjoint(self, points: Tensor, dim: int) -> Tensor:
        """Tᵀ: (..., kernel, ...) from (P, ..., depth, ...); ``dim`` does not count P."""
        if not self.winograd:
            return points.squeeze(0)
        shape = list(points.shape[1:])
        out = points.new_empty(*shape[:dim], self.taps, *shape[dim:])
        run([(o, _terms(column, points)) for o, column in zip(out.unbind(dim), zip(*WINOGRAD[self.taps][2]))])
        return out.flatten(dim, dim + 1)


def _windows(x: Tensor, dim: int, start: int, count: int, step: int, size: int) -> Tensor:
    """A view of ``count`` windows along ``dim``: (..., count, size, ...)."""
    covered = x.narrow(dim, start, step * (count - 1) + size)
    return covered.unfold(dim, size, step).movedim(-1, dim + 1)


def _terms(row: Sequence[Factor], tensors: Sequence[Tensor] | Tensor) -> Terms:
    """The row's linear combination of the tensors: zeros left out, a positive term first."""
    terms = [(tensors[i], factor) for i, factor in enumerate(row) if factor]
    return sorted(terms, key=lambda term: -term[1])


def _overlap(slots: Tensor, shifted: list[Terms], dim: int) -> Iterator[Step]:
    """slots[t] = Σ_u shifted[u][t - u] along ``dim``: the longest sum is written, the rest zeroed, the others added."""
    count = slots.shape[dim] - len(shifted) + 1
    first = max(range(len(shifted)), key=lambda u: len(shifted[u]))
    yield slots.narrow(dim, first, count), shifted[first]
    for start, stop in ((0, first), (first + count, slots.shape[dim])):
        if start < stop:
            yield slots.narrow(dim, start, stop - start), []
    for u, terms in enumerate(shifted):
        if u != first:
            out = slots.narrow(dim, u, count)
            yield out, [(out, 1), *terms]


def run(steps: list[Step]) -> None:
    """Write each step's linear combination, one pass over memory for each term after the first."""
    for out, terms in steps:
        if not terms:
            out.zero_()
            continue
        first, factor = terms[0]
        rest = terms[1:]
        if factor != 1:
            torch.mul(first, factor, out=out)
        elif rest:
            torch.add(first, rest[0][0], alpha=rest[0][1], out=out)
            rest = rest[1:]
        else:
            out.copy_(first)
        for x, factor in rest:
            out.add_(x, alpha=factor)


@dataclass(frozen=True)
class Plan:
    """An algorithm for one convolution: rows, columns, and the channels of the wide and the narrow side."""

    rows: Axis
    columns: Axis
    wide: int
    narrow: int

    @property
    def winograd(self) -> bool:
        return self.rows.winograd

    @property
    def products(self) -> tuple[int, int, int]:
        """P, M for one image, and K."""
        y, x = self.rows, self.columns
        return y.points * x.points, y.windows * x.windows, y.depth * x.depth * self.wide

    def pack(self, weight: Tensor) -> Tensor:
        """T: (P, O, K) from a weight (O, C, kernel, kernel). A view if direct and the weight is channels-last."""
        P, _, K = self.products
        w = weight.permute(0, 2, 3, 1)
        w = self.rows.transform(self.columns.transform(w, 2), 2)  # (Py, Px, O, Jy, Jx, C)
        return w.reshape(P, self.narrow, K)

    def unpack(self, points: Tensor) -> Tensor:
        """Tᵀ: (O, C, kernel, kernel), channels-last, from (P, O, K)."""
        y, x = self.rows, self.columns
        w = points.view(y.points, x.points, self.narrow, y.depth, x.depth, self.wide)
        w = x.transform_adjoint(y.transform_adjoint(w, 2), 2)
        return w.permute(0, 3, 1, 2)

    @property
    def bytes_per_image(self) -> int:
        """Operands of the products, in single precision."""
        P, M, K = self.products
        return 4 * P * M * (K + self.narrow)

    def images_per_chunk(self, chunk_bytes: int) -> int:
        """So many that the products' operands stay in the cache, yet are as large as the weight they have to fetch."""
        P, _, K = self.products
        return max(max(chunk_bytes, 4 * P * K * self.narrow) // self.bytes_per_image, 1)

    def cost(self, batch: int) -> float:
        """Time of one of the three products with its passes over memory, in multiply-adds (see :func:`choose`)."""
        P, M, K = self.products
        if not self.winograd:
            return float(batch * M * K * (self.narrow + 16))
        run_length = self.columns.stride * self.wide
        passes = 40 * (1 + 8 / run_length) * K + 16 * self.narrow
        return batch * P * M * (K * self.narrow + passes) + 100 * P * K * self.narrow


@lru_cache(maxsize=512)
def choose(
    kernel: int, stride: int, padding: int, wide: tuple[int, int, int], narrow: tuple[int, int, int], batch: int
) -> Plan:
    """The cheaper plan for sides (H, W, C) and (h, w, O).

    The constants are measured: a number gathered into a window costs as much as 16 multiply-adds, one that passes
    through V or Vᵀ 40, through U or Uᵀ 16, more where few lie side by side, and a transformed weight 100.
    """

    def plan(winograd: bool) -> Plan:
        rows, columns = (Axis(kernel, stride, padding, wide[i], narrow[i], winograd) for i in range(2))
        return Plan(rows, columns, wide[2], narrow[2])

    plans = [plan(False)]
    if kernel % stride == 0 and kernel // stride in WINOGRAD:
        plans.append(plan(True))
    return min(plans, key=lambda p: p.cost(batch))
