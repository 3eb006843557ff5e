"""Convolution layers for images (N, H, W, C): channels last, as matrix products want them.

On a CPU all but small ones compute by :mod:`twm.nn.conv_cpu`, everywhere else, and under autocast or export, by
PyTorch's own functions (:func:`plain`), which also say what the layers mean. The parameters are those of
``nn.Conv2d`` and ``nn.ConvTranspose2d``: same names, shapes, initialisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twm import native
from twm.config import ConfigError
from twm.nn.conv_cpu import Convolution, forward
from twm.nn.conv_plan import choose

SMALL = 4 * 48  # channels in times channels out


class _Convolution(nn.Module):
    """What the two layers share: parameters, checks, and the choice between the fast path and the plain one."""

    transposed: bool

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, *, activation: bool = False
    ) -> None:
        super().__init__()
        if min(inputs, outputs, kernel, stride) < 1 or not 0 <= padding < kernel:
            raise ConfigError(
                f"a convolution needs positive sizes and a padding below the kernel's, but got {inputs} to {outputs} "
                f"channels, kernel {kernel}, stride {stride}, padding {padding}"
            )
        self.inputs, self.outputs = inputs, outputs
        self.kernel, self.stride, self.padding = kernel, stride, padding
        self.activation = activation
        shape = (inputs, outputs) if self.transposed else (outputs, inputs)
        weight = torch.empty(*shape, kernel, kernel).to(memory_format=torch.channels_last)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """PyTorch's initialisation: uniform within ± 1/√(fan in), where fan in = shape[1] · kernel²."""
        bound = 1 / math.sqrt(self.weight.shape[1] * self.kernel**2)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        return (
            f"{self.inputs}, {self.outputs}, kernel={self.kernel}, stride={self.stride}, padding={self.padding}, "
            f"activation={self.activation}"
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, H, W, inputs) to (N, H', W', outputs)."""
        rows, columns = self._check(x)
        if self._is_small or not _is_fast(x, self.weight):
            return self.plain(x)
        near, far = (x.shape[1], x.shape[2], self.inputs), (rows, columns, self.outputs)
        wide, narrow = (far, near) if self.transposed else (near, far)
        plan = choose(self.kernel, self.stride, self.padding, wide, narrow, len(x))
        parameters = (self.weight, self.bias)
        if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *parameters)):
            apply: Callable[..., Tensor] = Convolution.apply
            return apply(x, *parameters, plan, self.transposed, self.activation)
        with torch.inference_mode(False), torch.no_grad():  # kept workspaces serve training, too
            return forward(plan, self.transposed, x, plan.pack(self.weight), self.bias, self.activation, keep=False)[0]

    @property
    def _is_small(self) -> bool:
        """Whether PyTorch's own are as fast or faster (measured: scripts/conv_bench.py, docs/performance.md)."""
        return self.kernel <= 4 and self.inputs * self.outputs <= SMALL

    def plain(self, x: Tensor) -> Tensor:
        """The same by PyTorch's functions: what CUDA runs, and what the fast path is tested against."""
        function = F.conv_transpose2d if self.transposed else F.conv2d
        y = function(x.permute(0, 3, 1, 2), self.weight, self.bias, self.stride, self.padding).permute(0, 2, 3, 1)
        return F.silu(y) if self.activation else y

    def output_size(self, size: int) -> int:
        """Positions along a dimension of the output, from those of the input."""
        if self.transposed:
            return (size - 1) * self.stride - 2 * self.padding + self.kernel
        return (size + 2 * self.padding - self.kernel) // self.stride + 1

    def _check(self, x: Tensor) -> tuple[int, int]:
        if x.ndim != 4 or x.shape[3] != self.inputs:
            raise ConfigError(f"expected images (N, H, W, {self.inputs}), but got {tuple(x.shape)}")
        rows, columns = self.output_size(x.shape[1]), self.output_size(x.shape[2])
        if rows < 1 or columns < 1:
            raise ConfigError(
                f"images of {x.shape[1]} x {x.shape[2]} are too small for kernel {self.kernel}, stride {self.stride}, "
                f"padding {self.padding}: use larger images or fewer layers"
            )
        return rows, columns


class Conv2d(_Convolution):
    """y[i, j] = b + Σ_{k, l} W[:, :, k, l] · x[s i + k - p, s j + l - p], then SiLU if ``activation``.

    Images are (N, H, W, C). The weight is ``nn.Conv2d``'s, (outputs, inputs, kernel, kernel).
    """

    transposed = False


class ConvTranspose2d(_Convolution):
    """The adjoint of :class:`Conv2d` in x, plus bias, then SiLU if ``activation``: strides spread the images.

    Images are (N, H, W, C). The weight is ``nn.ConvTranspose2d``'s, (inputs, outputs, kernel, kernel).
    """

    transposed = True


def _is_fast(x: Tensor, weight: Tensor) -> bool:
    """Whether :mod:`twm.nn.conv_cpu` applies: real work on a CPU in full precision, not a recording of it."""
    return (
        not native.is_plain_only()
        and x.device.type == "cpu"
        and x.dtype == weight.dtype
        and x.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and x.numel() > 0
    )
