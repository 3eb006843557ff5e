"""The observation model: a variational autoencoder with categorical latents (paper, section 2.1).

    encoder  z ~ p(z | o)        decoder  ô ~ p(ô | z), a unit normal around the decoded mean

Images go through the paper's convolutions or, an order of magnitude cheaper, through 4x4 patches and
smaller convolutions; vectors of numbers through multilayer perceptrons.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from twm.config import ConfigError, WorldModelConfig
from twm.nn import latents
from twm.nn.conv import Conv2d, ConvTranspose2d
from twm.nn.mlp import MLP
from twm.nn.products import Linear
from twm.nn.two_hot import symexp, symlog

PATCH = 4  # pixels along a side
PLACES = 16  # 4 x 4, what the patches are halved to


class ObservationModel(nn.Module):
    def __init__(self, config: WorldModelConfig, observation_shape: tuple[int, ...]) -> None:
        super().__init__()
        c = self.config = config
        self.observation_shape = observation_shape
        self.is_image = len(observation_shape) == 3
        Z = c.latent_variables * c.latent_categories
        self.encoder: nn.Module
        self.decoder: nn.Module
        if len(observation_shape) not in (1, 3):
            raise ConfigError(
                f"observations must be images (channels, height, width) or vectors (numbers,), but have shape "
                f"{observation_shape}: flatten them in the environment"
            )
        if not self.is_image:
            (numbers,) = observation_shape
            self.encoder = MLP(numbers, c.encoder_units, c.encoder_layers + 1, Z)
            self.decoder = MLP(Z, c.encoder_units, c.encoder_layers + 1, numbers)
        elif c.encoder == "conv":
            self.encoder = ConvEncoder(observation_shape, c.channels, c.encoder_units, c.encoder_layers, Z)
            self.decoder = ConvDecoder(observation_shape, c.channels, Z)
        else:
            head: Callable[[int], nn.Module]
            if c.encoder == "places":
                head = partial(PlacesHead, variables=c.latent_variables, categories=c.latent_categories)
            else:
                head = partial(WholeHead, units=c.encoder_units, layers=c.encoder_layers, outputs=Z)
            self.encoder = PatchEncoder(observation_shape, c.channels, head)
            self.decoder = PatchDecoder(observation_shape, c.channels, c.encoder_units, Z)

    def scale(self, o: Tensor) -> Tensor:
        """Raw observations as the networks see them: vectors through symlog, whatever their scale; pixels in [0, 1]
        and in the order of reading: (batch, height, width, C), or (batch, height/4, width/4, 16 C) as patches."""
        if not self.is_image:
            return symlog(o.float())
        if self.config.encoder == "conv":
            return o.permute(0, 2, 3, 1).contiguous().float() / 255
        rows = o.unflatten(2, (-1, PATCH)).unflatten(4, (-1, PATCH))  # (batch, C, rows, 4, columns, 4)
        return rows.permute(0, 2, 4, 1, 3, 5).flatten(3).float() / 255

    def arrange(self, x: Tensor) -> Float[Tensor, "batch *observation"]:
        """What the networks see or say in the axes of an observation."""
        if not self.is_image:
            return x
        if self.config.encoder == "conv":
            return x.permute(0, 3, 1, 2)
        rows = x.unflatten(3, (-1, PATCH, PATCH)).permute(0, 3, 1, 4, 2, 5)
        return rows.flatten(4).flatten(2, 3)

    def unscale(self, x: Tensor) -> Tensor:
        """The reverse of :meth:`scale`, for people to look at."""
        return (self.arrange(x).clamp(0, 1) * 255).round().to(torch.uint8) if self.is_image else symexp(x)

    def encode(self, x: Tensor) -> Float[Tensor, "batch V K"]:
        """Logits of p(z | o) for scaled observations."""
        c = self.config
        logits = self.encoder(x).unflatten(-1, (c.latent_variables, c.latent_categories))
        return latents.mix_uniform(logits, c.unimix)

    def decode(self, z: Float[Tensor, "batch Z"]) -> Tensor:
        """Mean of p(ô | z), scaled."""
        o_hat: Tensor = self.decoder(z)
        return o_hat

    @staticmethod
    def negative_log_likelihood(
        o: Float[Tensor, "batch *scaled"], o_hat: Float[Tensor, "batch *scaled"]
    ) -> Float[Tensor, " batch"]:
        """-ln p(o | z) of a unit normal, without its constant: ½ Σ (o - ô)² over the pixels."""
        return 0.5 * F.mse_loss(o_hat, o, reduction="none").flatten(1).sum(1)


def conv_sizes(size: int) -> list[int]:
    """Sides of the paper's encoder: kernel 4, stride 2, as often as it fits. 64 → 31 → 14 → 6 → 2."""
    sizes = [size]
    while sizes[-1] >= 4:
        sizes.append((sizes[-1] - 4) // 2 + 1)
    if len(sizes) == 1:
        raise ConfigError(
            f"frames of {size} x {size} are too small for a convolution of kernel 4: raise --env-options.size"
        )
    return sizes


def transposed_kernels(size: int) -> list[int]:
    """Kernels of stride 2 that lead from 1 x 1 to exactly ``size``. For 64: 5, 5, 6, 6 (1 → 5 → 13 → 30 → 64)."""
    kernels: list[int] = []
    while size > 1:
        kernel = min(size, 6 if size % 2 == 0 else 5)
        kernels.insert(0, kernel)
        size = (size - kernel) // 2 + 1
    return kernels


class ConvEncoder(nn.Module):
    """The paper's encoder: four convolutions for 64 x 64, SiLU throughout, then fully connected layers."""

    def __init__(self, shape: tuple[int, ...], channels: int, units: int, layers: int, outputs: int) -> None:
        super().__init__()
        side = _square(shape)
        sizes = conv_sizes(side)
        widths = [shape[0]] + [channels * 2**i for i in range(len(sizes) - 1)]
        self.convolutions = nn.Sequential(*(Conv2d(a, b, 4, 2, activation=True) for a, b in zip(widths, widths[1:])))
        self.head = MLP(widths[-1] * sizes[-1] ** 2, units, layers, outputs)

    def forward(self, o: Tensor) -> Tensor:
        logits: Tensor = self.head(self.convolutions(o).flatten(1))
        return logits


class ConvDecoder(nn.Module):
    """The paper's decoder: a linear layer to 1 x 1, then transposed convolutions. The output bias starts at 0.5."""

    def __init__(self, shape: tuple[int, ...], channels: int, inputs: int) -> None:
        super().__init__()
        kernels = transposed_kernels(_square(shape))
        n = len(kernels)
        widths = [channels * 2**n, *(channels * 2**i for i in range(n - 2, -1, -1)), shape[0]]  # 768, 192, 96, 48, 4
        self.input = Linear(inputs, widths[0])
        layers = [
            ConvTranspose2d(a, b, k, 2, activation=i < n - 1)
            for i, (a, b, k) in enumerate(zip(widths, widths[1:], kernels))
        ]
        nn.init.constant_(layers[-1].bias, 0.5)
        self.convolutions = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor:
        o_hat: Tensor = self.convolutions(F.silu(self.input(z))[:, None, None, :])
        return o_hat


class PatchEncoder(nn.Module):
    """4x4 patches through a linear layer, convolutions of stride 2 down to 4 x 4 places, and a head that makes logits.

    Pixels are centred and features normalised: without, games with a large plain background (Boxing) never learn
    to encode what moves in front of it (docs/lab-book.md).
    """

    def __init__(self, shape: tuple[int, ...], channels: int, head: Callable[[int], nn.Module]) -> None:
        super().__init__()
        widths = [channels * 2**i for i in range(_halvings(shape) + 1)]
        self.patches = nn.Linear(shape[0] * PATCH**2, channels)
        self.convolutions = nn.Sequential(*(_halve(a, b) for a, b in zip(widths, widths[1:])))
        self.head = head(widths[-1])

    def forward(self, x: Tensor) -> Tensor:
        # W (2x - 1) + b, without a pass over the pixels.
        weight, bias = self.patches.weight, self.patches.bias
        features = F.silu(F.linear(x, 2 * weight, bias - weight.sum(1)))
        logits: Tensor = self.head(self.convolutions(features).flatten(1))
        return logits


class WholeHead(nn.Sequential):
    """All places together determine every latent variable."""

    def __init__(self, channels: int, units: int, layers: int, outputs: int) -> None:
        super().__init__(nn.LayerNorm(channels * PLACES), MLP(channels * PLACES, units, layers, outputs))


class PlacesHead(nn.Module):
    """Each place determines its own share of the latent variables, by one linear layer for all places: what is learned
    about a thing holds wherever it goes. With fewer variables than places, neighbours share."""

    def __init__(self, channels: int, variables: int, categories: int) -> None:
        super().__init__()
        self.regions = math.gcd(variables, PLACES)
        self.norm = nn.LayerNorm(channels)
        self.output = nn.Linear(channels * PLACES // self.regions, variables * categories // self.regions)

    def forward(self, features: Tensor) -> Tensor:
        places = self.norm(features.unflatten(1, (PLACES, -1))).flatten(1)
        logits: Tensor = self.output(places.unflatten(1, (self.regions, -1)))
        return logits.flatten(1)


class PatchDecoder(nn.Module):
    """Fully connected layers to 4 x 4 places, transposed convolutions, a linear layer to patches."""

    def __init__(self, shape: tuple[int, ...], channels: int, units: int, inputs: int) -> None:
        super().__init__()
        widths = [channels * 2**i for i in reversed(range(_halvings(shape) + 1))]
        self.input = MLP(inputs, units, 1, widths[0] * PLACES)
        self.convolutions = nn.Sequential(*(_double(a, b) for a, b in zip(widths, widths[1:])))
        self.patches = Linear(channels, shape[0] * PATCH**2)
        nn.init.constant_(self.patches.bias, 0.5)

    def forward(self, z: Tensor) -> Tensor:
        x = F.silu(self.input(z)).unflatten(-1, (4, 4, -1))
        o_hat: Tensor = self.patches(self.convolutions(x))
        return o_hat


def _halve(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(Conv2d(inputs, outputs, 4, 2, padding=1), nn.LayerNorm(outputs), nn.SiLU())


def _double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(ConvTranspose2d(inputs, outputs, 4, 2, padding=1), nn.LayerNorm(outputs), nn.SiLU())


def _square(shape: tuple[int, ...]) -> int:
    _, height, width = shape
    if height != width:
        raise ConfigError(
            f"the observation model takes square frames, but these are {height} x {width}: set --env-options.size"
        )
    return height


def _halvings(shape: tuple[int, ...]) -> int:
    """How often 4x4 patches must be halved to reach 4 x 4: 64 → 16 → 8 → 4 is two."""
    side = _square(shape)
    halvings = max(side // 16, 1).bit_length() - 1
    if side != 16 * 2**halvings:
        raise ConfigError(
            f"the patch encoder takes frames of 16, 32, 64, 128, ... pixels, but got {side}: "
            "set --env-options.size to one of these, or --world-model.encoder conv"
        )
    return halvings
