"""transformer_step.c from Python: a transformer's weights laid out for it, and the call.

What it computes is :class:`twm.nn.transformer_xl.TransformerXL` with a memory, asked for the last of a few new tokens
in float32 on a CPU, without gradients: a step of a dream.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from twm import native

if TYPE_CHECKING:
    from twm.nn.transformer_xl import Layer, Memory, TransformerXL

SOURCE = Path(__file__).with_suffix(".c")
MOST_TOKENS = 3


def library() -> ctypes.CDLL | None:
    """The compiled C file; None where it cannot be had."""
    found = native.load(SOURCE)
    if found is not None:
        found.scratch_size.restype = found.packed_floats.restype = ctypes.c_size_t
    return found


def panel_width() -> int:
    """Numbers that lie together in the layout of weights, keys and positions."""
    found = library()
    return 1 if found is None else int(found.panel_width())


class PackedTransformer:
    """The weights of a transformer as they are now, in the order in which the C file reads them."""

    def __init__(self, library: ctypes.CDLL, transformer: TransformerXL, positions: list[Tensor]) -> None:
        width = library.panel_width()
        layers = transformer._layers()
        D, self._heads, self._F = transformer.width, transformer.heads, layers[0].expand.out_features
        d = D // self._heads
        self._together = next(n for n in range(1, self._heads + 1) if self._heads % n == 0 and n * d % width == 0)
        self._pre_norm, self._eps = layers[0].pre_norm, layers[0].norm_attention.eps
        self._u, self._v = (bias.detach().flatten() * D**-0.5 for bias in (transformer.u, transformer.v))
        self._reach = positions[0].shape[-1]
        self._distances = -(-(self._reach + MOST_TOKENS) // width) * width
        units = library.hidden_units()
        weights = [self._in_order(layer, units) for layer in layers]
        panels = _in_panels(library, [weight for each in weights for weight in each])
        starts = range(0, len(panels), len(weights[0]))
        self._tensors = [
            [
                *(*panels[i : i + 3], layer.expand.bias, layer.contract.bias),  # behind the third lie the others
                *(layer.norm_attention.weight, layer.norm_attention.bias),
                *(layer.norm_feedforward.weight, layer.norm_feedforward.bias),
                # What is read after the last distance is never used.
                torch.cat(_in_panels(library, [F.pad(x, (0, self._distances - self._reach)).t() for x in p])),
            ]
            for i, layer, p in zip(starts, layers, positions, strict=True)
        ]

    def _in_order(self, layer: Layer, units: int) -> list[Tensor]:
        """Weights in the order of their use: queries, keys and values of the heads computed together, the output, then
        in and out of so many hidden units at a time."""
        three = (layer.query.weight, *layer.key_value.weight.chunk(2))
        grouped = [x.unflatten(0, (self._heads // self._together, -1)) for x in three]
        hidden = zip(layer.expand.weight.split(units), layer.contract.weight.split(units, 1), strict=True)
        return [
            torch.stack(grouped, 1).flatten(0, 2),
            layer.output.weight,
            *(weight for pair in hidden for weight in pair),
        ]

    @classmethod
    def of(cls, transformer: TransformerXL, positions: list[Tensor]) -> PackedTransformer | None:
        """None where the C file cannot be had, or was not made for this transformer."""
        found, weight, layer = library(), transformer.u, transformer._layers()[0]
        if found is None or weight.device.type != "cpu" or weight.dtype != torch.float32:
            return None
        fits = not any(size % found.panel_width() for size in (transformer.width, layer.expand.out_features))
        if not fits or transformer.width // transformer.heads % found.lanes():
            return None
        return cls(found, transformer, positions)

    def step(self, x: Tensor, allowed: Tensor, memory: Memory) -> Tensor:
        """(B, D): what the last of the new tokens x (B, T, D) becomes; their keys and values go into the memory."""
        c = _required()
        B, T, D = x.shape
        keys, room, allowed = allowed.shape[-1], memory.stored, allowed.contiguous()
        used_up = x.new_empty(B * T + c.spare_tokens(), D)
        used_up[: B * T] = x.flatten(0, 1)
        y = x.new_empty(B, D)
        together = self._together * D // self._heads
        scratch = x.new_empty(c.scratch_size(B, T, D, self._F, keys, together, self._distances))
        pointers = [
            tensor.data_ptr() for tensors, kv in zip(self._tensors, memory.k, strict=True) for tensor in (*tensors, kv)
        ]
        c.step(
            (ctypes.c_void_p * len(pointers))(*pointers),
            len(self._tensors),
            *(B, T, D, self._heads, self._together, self._F, keys, room, self._distances, self._reach - keys),
            self._pre_norm,
            _pointer(self._u),
            _pointer(self._v),
            ctypes.c_float(self._eps),
            _pointer(allowed),
            _pointer(used_up),
            _pointer(y),
            _pointer(scratch),
        )
        return y


class PackedLinear:
    """A linear layer as its weights are now, with SiLU after it by option."""

    def __init__(self, library: ctypes.CDLL, layer: nn.Linear, *, silu: bool) -> None:
        self.silu = silu
        self._inputs, self._outputs = layer.in_features, layer.out_features
        missing = -layer.out_features % library.panel_width()
        (self._panels,) = _in_panels(library, [F.pad(layer.weight.detach(), (0, 0, 0, missing))])
        self._bias = F.pad(layer.bias.detach(), (0, missing))

    def __call__(self, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows outputs"]:
        rows, K = x.shape
        if self._inputs != K or x.dtype != torch.float32:
            raise ValueError(f"expected {self._inputs} numbers of float32 a row, but got {K} of {x.dtype}")
        c, x, N = _required(), x.contiguous(), len(self._bias)
        y = x.new_empty(rows + c.spare_tokens(), N)
        pointers = [_pointer(part) for part in (x, self._panels, self._bias, y)]
        if c.linear(pointers[0], rows, K, *pointers[1:3], N, self.silu, pointers[3]):
            raise MemoryError(f"no memory for a product of {rows} rows")
        return y[:rows, : self._outputs]


def _required() -> ctypes.CDLL:
    """Asked for at every call and kept nowhere, so that what is packed can be copied as other modules can."""
    found = library()
    if found is None:
        raise RuntimeError("weights were packed for a C file that is switched off now")
    return found


def _in_panels(library: ctypes.CDLL, weights: list[Tensor]) -> list[Tensor]:
    """Each (N, K) as the C file wants it, one after the other in memory; N is a multiple of the panels' width."""
    every = weights[0].new_empty(sum(sizes := [int(library.packed_floats(*weight.shape)) for weight in weights]))
    panels = list(every.split(sizes))
    for weight, to in zip(weights, panels, strict=True):
        rows = weight.detach().contiguous()
        library.pack(_pointer(rows), *rows.shape, _pointer(to))
    return panels


def _pointer(x: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data_ptr())
