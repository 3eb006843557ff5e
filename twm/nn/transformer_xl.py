"""Transformer-XL: causal attention with relative positions and a memory of past keys and values.

Scores between query i and key j (Dai et al. 2019), with one vector u and one v for all layers:

    s_ij = [ (q_i + u)·k_j + (q_i + v)·W_r R_{i-j} ] / √D        for j ≤ i and where the mask allows

``R`` holds sines and cosines of the distance. The same layers run in two ways: over whole sequences
(training), or over a few new tokens after those a :class:`Memory` holds (dreaming, acting). Both give
the same numbers; a test holds this for every mask pattern. Steps after a memory are taken by transformer_step.c
where there is a compiler; the layers below say what it computes.

The last layer is asked only for the outputs that are used (``spacing``): of z, a, r tokens only those
of a, so a third of its work.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from twm.nn import transformer_step
from twm.nn.dropout import Dropout
from twm.nn.products import Linear


def sinusoids(length: int, width: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "length width"]:
    """R_d for the distances d = length-1, ..., 1, 0: sines of d/10000^(2k/width), then cosines."""
    distance = torch.arange(length - 1, -1, -1, device=device, dtype=dtype)
    frequency = 10_000.0 ** -(torch.arange(0, width, 2, device=device, dtype=dtype) / width)
    angle = distance[:, None] * frequency  # (length, width / 2)
    return torch.cat([angle.sin(), angle.cos()], -1)


def shift(scores: Float[Tensor, "*batch S keys"], spacing: int) -> Float[Tensor, "*batch S keys"]:
    """From scores by distance to scores by key.

    Column c of the input belongs to distance keys-1-c. The S queries are ``spacing`` tokens apart and the
    last stands at the last key, so query s must be read ``(S-1-s)·spacing`` columns further right. Padding
    each row by ``spacing`` and reading the flat memory from there does it for all rows at once; what
    wraps around are keys after the query, which the causal mask hides.
    """
    S, keys = scores.shape[-2:]
    if S == 1:
        return scores
    flat = F.pad(scores, (0, spacing)).flatten(-2)
    return flat[..., (S - 1) * spacing : (S - 1) * spacing + S * keys].reshape(scores.shape)


class Memory:
    """Keys and values of the tokens seen so far, for every layer, and where each token belongs.

    Room is set aside once; when it is full, the tokens still within reach move to the front.
    """

    def __init__(self, transformer: TransformerXL, rows: int, reach: int, room: int, *, in_c: bool = True) -> None:
        """``reach``: how many tokens back a new one may look. ``room``: tokens to hold before moving. Without ``in_c``
        the layers below take every step: they can tell their attention weights."""
        weight, d = transformer.u, transformer.width // transformer.heads
        # A key lies beside its value, and there is room for whole vectors of them: so the C file reads them.
        self.stored = -(-room // transformer_step.panel_width()) * transformer_step.panel_width()
        shape = (len(transformer.layers), transformer.heads, rows, self.stored, 2, d)
        both = torch.empty(shape, device=weight.device, dtype=weight.dtype)
        self.k, self.v = both[..., :room, 0, :], both[..., :room, 1, :]
        self.episode = torch.zeros((rows, room), dtype=torch.long, device=weight.device)
        self.step = torch.zeros(room, dtype=torch.long, device=weight.device)
        self.length = 0
        self.reach = reach
        self._in_c = in_c
        self.project(transformer)

    def project(self, transformer: TransformerXL) -> None:
        """The projected positions and the weights in the C file's order, which change with the weights only."""
        self.positions = transformer.positions(self.step.shape[0])
        # Whole vectors do not fit if C was switched off when the memory was made.
        fits = self._in_c and self.stored % transformer_step.panel_width() == 0
        self.packed = transformer_step.PackedTransformer.of(transformer, self.positions) if fits else None

    def extend(self, episode: Tensor, step: Tensor) -> int:
        """Make room for new tokens with these labels; returns where the first of them stands."""
        new, room = step.shape[0], self.step.shape[0]
        if self.length + new > room:
            keep = min(self.reach, self.length)
            for store, axis in ((self.k, 3), (self.v, 3), (self.episode, 1), (self.step, 0)):
                store.narrow(axis, 0, keep).copy_(store.narrow(axis, self.length - keep, keep).clone())
            self.length = keep
        start, self.length = self.length, self.length + new
        self.episode[:, start : self.length] = episode
        self.step[start : self.length] = step
        return start


class Layer(nn.Module):
    """Attention and feedforward, each with a residual connection and a layer norm after or before it."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float, norm: str) -> None:
        super().__init__()
        self.heads = heads
        self.pre_norm = norm == "pre"
        self.query = Linear(width, width, bias=False)
        self.key_value = Linear(width, 2 * width, bias=False)
        self.position = Linear(width, width, bias=False)
        self.output = Linear(width, width, bias=False)
        self.norm_attention = nn.LayerNorm(width)
        self.expand = Linear(width, feedforward)
        self.contract = Linear(feedforward, width)
        self.norm_feedforward = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, D) to (heads, B, T, D / heads). Heads come first: all rows share a head's positions, so the
        product with them is one large matrix product a head."""
        B, T, D = x.shape
        return x.view(B, T, self.heads, D // self.heads).permute(2, 0, 1, 3)

    def forward(
        self,
        x: Tensor,  # (B, T, D): the new tokens
        positions: Tensor,  # (heads, D / heads, keys): W_r R, most distant first
        u: Tensor,  # (heads, 1, 1, D / heads)
        v: Tensor,  # (heads, 1, 1, D / heads)
        mask: Tensor,  # (B, S, keys) float: 0 where attention is allowed, -inf elsewhere
        spacing: int,  # outputs are wanted at every spacing-th token, the last included
        store: tuple[Tensor, Tensor, int] | None,  # keys, values of the memory, and where the new ones go
        weights: list[Tensor] | None,  # receives the attention weights, for analysis
    ) -> Tensor:
        _, T, D = x.shape
        normed = self.norm_attention(x) if self.pre_norm else x
        k, v_ = (self.split(y) for y in self.key_value(normed).chunk(2, -1))  # (heads, B, T, d) each
        if store is not None:
            memory_k, memory_v, start = store
            memory_k[:, :, start : start + T] = k
            memory_v[:, :, start : start + T] = v_
            k, v_ = memory_k[:, :, : start + T], memory_v[:, :, : start + T]
        if spacing > 1:
            first = (T - 1) % spacing
            x, normed = x[:, first::spacing], normed[:, first::spacing]
        q = self.split(self.query(normed)) * D**-0.5  # (heads, B, S, d)
        scores = (q + u) @ k.transpose(-1, -2)  # (heads, B, S, keys): content
        distances = (q + v).flatten(1, 2) @ positions  # (heads, BS, keys)
        scores = scores + shift(distances.view(scores.shape), spacing)
        attention = torch.softmax(scores + mask, -1)
        if weights is not None:
            weights.append(attention.detach().transpose(0, 1))
        mixed = (self.dropout(attention) @ v_).permute(1, 2, 0, 3).flatten(-2)  # (B, S, D)
        x = x + self.dropout(self.output(mixed))
        x = x if self.pre_norm else self.norm_attention(x)
        hidden = self.expand(self.norm_feedforward(x) if self.pre_norm else x)
        hidden = F.silu(hidden, inplace=not hidden.requires_grad)
        x = x + self.dropout(self.contract(hidden))
        return x if self.pre_norm else self.norm_feedforward(x)


class TransformerXL(nn.Module):
    """A stack of :class:`Layer` with shared content and position biases u and v."""

    def __init__(self, width: int, layers: int, heads: int, feedforward: int, dropout: float, norm: str) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.layers = nn.ModuleList(Layer(width, heads, feedforward, dropout, norm) for _ in range(layers))
        self.u = nn.Parameter(torch.zeros(heads, 1, width // heads))
        self.v = nn.Parameter(torch.zeros(heads, 1, width // heads))
        self.final_norm = nn.LayerNorm(width) if norm == "pre" else nn.Identity()

    def positions(self, length: int) -> list[Tensor]:
        """W_r R of each layer for distances below ``length``, most distant first: (heads, D / heads, length)."""
        R = sinusoids(length, self.width, self.u.device, self.u.dtype)
        return [layer.position(R).unflatten(-1, (self.heads, -1)).permute(1, 2, 0) for layer in self._layers()]

    def _layers(self) -> list[Layer]:
        return list(self.layers)  # type: ignore[arg-type]

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        allowed: Bool[Tensor, "B T keys"],
        *,
        spacing: int = 1,
        memory: Memory | None = None,
        start: int = 0,
        weights: list[Tensor] | None = None,
    ) -> Float[Tensor, "B S D"]:
        """Outputs at every ``spacing``-th token (the last included).

        ``allowed[b, i, j]``: token i may attend to key j; the caller includes causality. Keys are the tokens
        themselves or, with ``memory``, all it holds, the new ones from ``start`` on.
        """
        T, keys = allowed.shape[-2:]
        if memory is not None and memory.packed is not None and weights is None and self._fits_c(x, spacing):
            in_c: Tensor = self.final_norm(memory.packed.step(x, allowed, memory).unsqueeze(1))
            return in_c
        mask = torch.zeros(allowed.shape, dtype=x.dtype, device=x.device).masked_fill_(~allowed, -torch.inf)
        positions = self.positions(keys) if memory is None else [p[..., -keys:] for p in memory.positions]
        layers = self._layers()
        scale = self.width**-0.5  # of the scores; the layers apply it to the small side, the queries
        u, v = self.u.unsqueeze(1) * scale, self.v.unsqueeze(1) * scale
        for index, layer in enumerate(layers):
            sparse = spacing if index == len(layers) - 1 else 1
            selected = mask if sparse == 1 else mask[:, (T - 1) % sparse :: sparse]
            store = None if memory is None else (memory.k[index], memory.v[index], start)
            x = layer(x, positions[index], u, v, selected, sparse, store, weights)
        y: Tensor = self.final_norm(x)
        return y

    def _fits_c(self, x: Tensor, spacing: int) -> bool:
        """Whether transformer_step.c can do it: the last of a few new tokens, with nothing to learn from it."""
        learns = torch.is_grad_enabled() or (self.training and self._layers()[0].dropout.p > 0)
        recorded = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
        few = spacing == x.shape[1] <= transformer_step.MOST_TOKENS
        return few and not learns and not recorded and transformer_step.library() is not None
