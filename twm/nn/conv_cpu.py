"""Convolution and transposed convolution on a CPU, forwards and backwards, as chunks of matrix products.

Images pass in chunks that fit the caches, one workspace for each thread: V or U, the products, the adjoint, then bias
and SiLU while the chunk is still there. Only the input and, for SiLU, the pre-activation are kept for the backward
pass, which computes V and U again: that is cheaper than to write them to memory and read them back.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from twm.nn import products
from twm.nn.conv_passes import Passes
from twm.nn.conv_plan import Plan, Step, run
from twm.nn.workers import alone, over_chunks

# Operands of one chunk's products. Smaller chunks drown in calls, larger ones fall out of the cache between two passes.
CHUNK_BYTES = 4 << 20

# Workspaces with no larger operands are kept from call to call.
KEPT_BYTES = 1 << 20


class Workspace:
    """Buffers for n images, of the type of ``like``, and the maps V, Vᵀ, U, Uᵀ between them.

    Buffers are made when first used, and a map is a list of steps on fixed views of them: a chunk of images costs one
    call for each pass over memory and next to nothing besides. The input buffers have room for padding and for whole
    windows, and are zero there.
    """

    def __init__(self, plan: Plan, n: int, like: Tensor) -> None:
        self.plan = plan
        self.n = n
        self.like = like
        self.passes = Passes.of(plan, n, like)

    def analyse(self, images: Tensor, before: Tensor | None = None) -> Tensor:
        """V: points (P, M, K) of wide images or, with ``before``, of their product with SiLU's derivative there."""
        self._fill(self._wide_part(self.wide_input), images, before)
        if self.passes is not None:
            self.passes.analyse(self.wide_input, self._wide_points)
        else:
            run(self._analysis)
        return self._wide_points

    def spread(self, images: Tensor, before: Tensor | None = None) -> Tensor:
        """U: points (P, M, O) of narrow images or, with ``before``, of their product with SiLU's derivative there."""
        if not self.plan.winograd and before is None:
            return images.reshape(1, -1, self.plan.narrow)
        self._fill(self._narrow_part(self.narrow_input), images, before)
        if not self.plan.winograd:
            return self.narrow_input.view(1, -1, self.plan.narrow)
        if self.passes is not None:
            self.passes.spread(self.narrow_input, self._narrow_points)
        else:
            run(self._spreading)
        return self._narrow_points

    def synthesise(self, points: Tensor, weight: Tensor) -> Tensor:
        """Vᵀ[points · weight]: wide images, valid until the next call of :meth:`synthesise` or :meth:`analyse`."""
        products.bmm(points, weight, self._wide_points)
        if self.passes is not None:
            self.passes.synthesise(self._wide_points, self._wide_output)
        else:
            run(self._synthesis)
        return self._wide_part(self._wide_output)

    def collect(self, points: Tensor, weight: Tensor) -> Tensor:
        """Uᵀ[points · weightᵀ]: narrow images, valid until the next call of :meth:`collect` or :meth:`spread`."""
        products.bmm(points, weight.transpose(1, 2), self._narrow_points)
        if not self.plan.winograd:
            return self._narrow_points.view(self.n, self.plan.rows.narrow, self.plan.columns.narrow, self.plan.narrow)
        if self.passes is not None:
            self.passes.collect(self._narrow_points, self._narrow_output)
        else:
            run(self._collection)
        return self._narrow_part(self._narrow_output)

    def finish(self, images: Tensor, bias: Tensor, before: Tensor, out: Tensor, activation: bool) -> None:
        """images + bias into ``before`` and, if asked, its activation into ``out``; the two may be one."""
        if self.passes is not None:
            self.passes.finish(images, bias.repeat(images.shape[2]), before, out, activation)
            return
        torch.add(images, bias, out=before)
        if activation:
            torch.ops.aten.silu.out(before, out=out)

    def copy_into(self, out: Tensor, images: Tensor) -> None:
        """The images, and zeros where no window reaches."""
        _, rows, columns, _ = images.shape
        self._fill(out[:, :rows, :columns], images, None)
        out[:, rows:] = 0
        out[:, :rows, columns:] = 0

    def _fill(self, out: Tensor, images: Tensor, before: Tensor | None) -> None:
        """The images, as far as windows reach, or images · d silu(before)."""
        if self.passes is not None:
            self.passes.fill(out, images, before)
        elif before is None:
            out.copy_(images[:, : out.shape[1], : out.shape[2]])
        else:
            torch.ops.aten.silu_backward.grad_input(images, before, grad_input=out)

    def _new_wide(self) -> Tensor:
        y, x = self.plan.rows, self.plan.columns
        return self.like.new_zeros(self.n, y.wide_extent, x.wide_extent, self.plan.wide)

    def _new_narrow(self) -> Tensor:
        y, x = self.plan.rows, self.plan.columns
        return self.like.new_zeros(self.n, y.narrow_extent, x.narrow_extent, self.plan.narrow)

    def _wide_part(self, whole: Tensor) -> Tensor:
        y, x = self.plan.rows, self.plan.columns
        return whole[:, y.padding : y.padding + y.wide, x.padding : x.padding + x.wide]

    def _narrow_part(self, whole: Tensor) -> Tensor:
        return whole[:, : self.plan.rows.narrow, : self.plan.columns.narrow]

    wide_input = cached_property(_new_wide)
    narrow_input = cached_property(_new_narrow)
    _wide_output = cached_property(_new_wide)
    _narrow_output = cached_property(_new_narrow)

    @cached_property
    def _wide_points(self) -> Tensor:
        P, M, K = self.plan.products
        return self.like.new_empty(P, self.n * M, K)

    @cached_property
    def _narrow_points(self) -> Tensor:
        P, M, _ = self.plan.products
        return self.like.new_empty(P, self.n * M, self.plan.narrow)

    @cached_property
    def _analysis(self) -> list[Step]:
        y, x, n, C = self.plan.rows, self.plan.columns, self.n, self.plan.wide
        by_rows = y.analyse(self.wide_input, 1)
        steps: list[Step] = []
        if self.plan.winograd:
            t = self.like.new_empty(y.points, n, y.windows, y.depth, x.wide_extent, C)
            steps += zip(t, by_rows)
        else:
            t = by_rows[0][0][0].unsqueeze(0)  # windows of rows are a view; the step below gathers both dimensions
        points = self._wide_points.view(y.points, x.points, n, y.windows, x.windows, y.depth, x.depth, C)
        return [*steps, *zip(points.transpose(4, 5).unbind(1), x.analyse(t, 4))]

    @cached_property
    def _synthesis(self) -> list[Step]:
        y, x, n, C = self.plan.rows, self.plan.columns, self.n, self.plan.wide
        points = self._wide_points.view(y.points, x.points, n, y.windows, x.windows, y.depth, x.depth * C)
        z = self.like.new_zeros(x.points, n, y.wide_extent, x.windows, x.depth * C)
        steps = y.synthesise(points.transpose(4, 5), z, 2)
        return [*steps, *x.synthesise(z.unflatten(-1, (x.depth, C)), self._wide_output, 2)]

    @cached_property
    def _spreading(self) -> list[Step]:
        y, x, n = self.plan.rows, self.plan.columns, self.n
        t = self.like.new_empty(y.points, n, y.windows, x.narrow_extent, self.plan.narrow)
        points = self._narrow_points.view(y.points, x.points, n, y.windows, x.windows, self.plan.narrow)
        return [*zip(t, y.spread(self.narrow_input, 1)), *zip(points.unbind(1), x.spread(t, 3))]

    @cached_property
    def _collection(self) -> list[Step]:
        y, x, n = self.plan.rows, self.plan.columns, self.n
        points = self._narrow_points.view(y.points, x.points, n, y.windows, x.windows, self.plan.narrow)
        z = self.like.new_empty(x.points, n, y.narrow_extent, x.windows, self.plan.narrow)
        return [*y.collect(points, z, 2), *x.collect(z, self._narrow_output, 2)]


class Workspaces(threading.local):
    """Each thread's workspaces, by the number of images (the chunks of a batch differ by one at most)."""

    def __init__(self, plan: Plan, like: Tensor) -> None:
        self.plan = plan
        self.like = like
        self.by_size: dict[int, Workspace] = {}

    def of(self, chunk: slice) -> Workspace:
        n = chunk.stop - chunk.start
        if n * self.plan.bytes_per_image <= KEPT_BYTES:
            return _kept_workspace(self.plan, n, self.like.dtype, threading.get_ident())
        if n not in self.by_size:
            self.by_size[n] = Workspace(self.plan, n, self.like)
        return self.by_size[n]


@lru_cache(maxsize=64)
def _kept_workspace(plan: Plan, n: int, dtype: torch.dtype, thread: int) -> Workspace:  # noqa: ARG001, for the cache
    """A workspace for few images: acting asks for the same ones thousands of times, and to make them takes long."""
    return Workspace(plan, n, torch.empty(0, dtype=dtype))


def forward(
    plan: Plan, transposed: bool, x: Tensor, weight: Tensor, bias: Tensor, activation: bool, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """The layer's output and, if asked to keep it and there is an activation, the pre-activation.

    x and the output are (N, H, W, C), the weight is packed (:meth:`Plan.pack`).
    """
    y, c = plan.rows, plan.columns
    shape = (y.wide, c.wide, plan.wide) if transposed else (y.narrow, c.narrow, plan.narrow)
    x, out = x.contiguous(), x.new_empty(len(x), *shape)
    before = torch.empty_like(out) if activation and keep else out

    workspaces = Workspaces(plan, out)

    def work(chunks: Sequence[slice]) -> None:
        for i in chunks:
            space = workspaces.of(i)
            if transposed:
                images = space.synthesise(space.spread(x[i]), weight)
            else:
                images = space.collect(space.analyse(x[i]), weight)
            space.finish(images, bias, before[i], out[i], activation)

    over_chunks(len(x), plan.images_per_chunk(CHUNK_BYTES), work)
    return out, before if before is not out else None


class Convolution(torch.autograd.Function):
    """:func:`forward` with its gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, plan: Plan, transposed: bool, activation: bool
    ) -> Tensor:
        packed = _pack(plan, weight.detach())
        out, before = forward(plan, transposed, x, packed, bias, activation, keep=True)
        ctx.save_for_backward(x, weight, before)
        ctx.packed = packed if plan.winograd else None
        ctx.plan, ctx.transposed = plan, transposed
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, before = ctx.saved_tensors
        x, grad = x.contiguous(), grad.contiguous()
        plan, transposed = ctx.plan, ctx.transposed
        packed = _pack(plan, weight) if ctx.packed is None else ctx.packed
        need_x, need_weight, need_bias, *_ = ctx.needs_input_grad
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format) if need_x else None
        workspaces = Workspaces(plan, x)

        def work(chunks: Sequence[slice]) -> tuple[Tensor, Tensor]:
            sum_weight, sum_bias = torch.zeros_like(packed), grad.new_zeros(grad.shape[-1])
            for i in chunks:
                space = workspaces.of(i)
                arguments = (grad[i],) if before is None else (grad[i], before[i])
                outer = space.analyse(*arguments) if transposed else space.spread(*arguments)
                if grad_x is not None:
                    adjoint = space.collect if transposed else space.synthesise
                    space.copy_into(grad_x[i], adjoint(outer, packed))
                if need_bias:
                    inputs = space.wide_input if transposed else space.narrow_input
                    sum_bias += (grad[i] if before is None else inputs).reshape(-1, len(sum_bias)).sum(0)
                if need_weight:
                    inner = space.spread(x[i]) if transposed else space.analyse(x[i])
                    wide, narrow = (outer, inner) if transposed else (inner, outer)
                    products.baddbmm(narrow.transpose(1, 2), wide, sum_weight)
            return sum_weight, sum_bias

        sums = over_chunks(len(x), plan.images_per_chunk(CHUNK_BYTES), work)
        grad_weight = alone(lambda: plan.unpack(_total([s for s, _ in sums]))) if need_weight else None
        grad_bias = _total([s for _, s in sums]) if need_bias else None
        return grad_x, grad_weight, grad_bias, None, None, None


def _pack(plan: Plan, weight: Tensor) -> Tensor:
    """The weight's points; a view, and no work for another thread, if the plan is direct."""
    return alone(lambda: plan.pack(weight)) if plan.winograd else plan.pack(weight)


def _total(parts: list[Tensor]) -> Tensor:
    for part in parts[1:]:
        parts[0] += part
    return parts[0]
