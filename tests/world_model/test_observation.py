"""The observation model: the paper's sizes, other frames, vectors, and errors that say what to do."""

from __future__ import annotations

import math
import re

import pytest
import torch
from small import small
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

from twm.config import Config, ConfigError
from twm.world_model.observation import (
    ConvDecoder,
    ConvEncoder,
    ObservationModel,
    PatchDecoder,
    PatchEncoder,
    conv_sizes,
    transposed_kernels,
)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_papers_encoder() -> None:
    """64 → 31 → 14 → 6 → 2 with 48·(1, 2, 4, 8) channels, then 512, 512, 1024; each layer's parameters by hand."""
    encoder = ObservationModel(Config().world_model, (4, 64, 64)).encoder
    assert isinstance(encoder, ConvEncoder)
    assert conv_sizes(64) == [64, 31, 14, 6, 2]
    widths = [4, 48, 96, 192, 384]
    assert [count(c) for c in encoder.convolutions] == [a * b * 16 + b for a, b in zip(widths, widths[1:])]
    fully = [384 * 2 * 2, 512, 512, 1024]
    assert count(encoder.head) == sum(a * b + b for a, b in zip(fully, fully[1:]))
    assert count(encoder) == 3_126_992


def test_the_papers_decoder() -> None:
    """Linear 1024 to 768, then transposed to 192, 96, 48, 4 channels with kernels 5, 5, 6, 6: 1 → 5 → 13 → 30 → 64."""
    decoder = ObservationModel(Config().world_model, (4, 64, 64)).decoder
    assert isinstance(decoder, ConvDecoder)
    assert transposed_kernels(64) == [5, 5, 6, 6]
    assert count(decoder.input) == 1024 * 768 + 768
    widths, kernels = [768, 192, 96, 48, 4], [5, 5, 6, 6]
    expected = [a * b * k * k + b for a, b, k in zip(widths, widths[1:], kernels)]
    assert [count(c) for c in decoder.convolutions] == expected
    assert decoder.convolutions[-1].bias.tolist() == [0.5] * 4  # observations lie in [0, 1]


def test_transposed_convolutions_reach_every_size() -> None:
    for size in range(8, 257):
        side = 1
        for kernel in transposed_kernels(size):
            side = (side - 1) * 2 + kernel
        assert side == size


@pytest.mark.parametrize("channels", [1, 12])
@pytest.mark.parametrize(
    ("encoder", "size"), [("conv", 8), ("conv", 21), ("conv", 50), ("conv", 84), ("patch", 32), ("places", 64)]
)
def test_other_frame_sizes_and_colour(encoder: str, size: int, channels: int) -> None:
    model = ObservationModel(small(world_model__encoder=encoder).world_model, (channels, size, size))
    pixels = torch.randint(256, (2, channels, size, size), dtype=torch.uint8)
    assert model.encode(model.scale(pixels)).shape == (2, 3, 4)
    assert model.decode(torch.rand(2, 12)).shape == model.scale(pixels).shape
    assert model.unscale(model.decode(torch.rand(2, 12))).shape == (2, channels, size, size)


@pytest.mark.parametrize(("size", "halvings"), [(16, 0), (32, 1), (64, 2), (128, 3)])
def test_patches_are_halved_to_4x4(size: int, halvings: int) -> None:
    model = ObservationModel(small().world_model, (1, size, size))
    assert isinstance(model.encoder, PatchEncoder)
    assert isinstance(model.decoder, PatchDecoder)
    assert len(model.encoder.convolutions) == len(model.decoder.convolutions) == halvings
    assert model.encode(torch.rand(1, size // 4, size // 4, 16)).shape == (1, 3, 4)
    assert model.decode(torch.rand(1, 12)).shape == (1, size // 4, size // 4, 16)
    assert model.decoder.patches.bias.tolist() == [0.5] * 16


@pytest.mark.parametrize(("variables", "regions"), [(32, 16), (16, 16), (24, 8), (3, 1)])
def test_latent_variables_are_shared_out_among_places(variables: int, regions: int) -> None:
    """A thing that moves by one place moves its code by one place's variables (away from the borders)."""
    config = small(world_model__encoder="places", world_model__latent_variables=variables).world_model
    encoder = ObservationModel(config, (1, 64, 64)).encoder
    assert encoder.head.regions == regions
    x = torch.full((2, 16, 16, 16), 0.5)
    thing = torch.rand(2, 2, 16)
    x[0, 5:7, 5:7], x[1, 5:7, 9:11] = thing, thing
    logits = encoder(x).view(2, variables, 4)
    assert logits.shape == (2, variables, 4)
    if regions == 16:
        places = logits.view(2, 4, 4, -1)
        torch.testing.assert_close(places[0, 1, 1], places[1, 1, 2])
        assert not torch.allclose(places[0, 1, 1], places[0, 1, 2])


def test_patches_are_a_convolution_of_centred_pixels() -> None:
    """What the linear layers on patches mean, by PyTorch's convolutions on the frame."""
    model = ObservationModel(small().world_model, (3, 32, 32))
    encoder, decoder = model.encoder, model.decoder
    pixels = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    kernel = encoder.patches.weight.view(-1, 3, 4, 4)
    features = F.silu(F.conv2d(2 * (pixels / 255) - 1, kernel, encoder.patches.bias, stride=4))
    features = encoder.convolutions(features.permute(0, 2, 3, 1))
    torch.testing.assert_close(encoder(model.scale(pixels)), encoder.head(features.flatten(1)))
    x = torch.randn(2, 8, 8, decoder.patches.in_features)
    kernel, bias = decoder.patches.weight.T.reshape(-1, 3, 4, 4), decoder.patches.bias.view(3, 4, 4)
    frame = F.conv_transpose2d(x.permute(0, 3, 1, 2), kernel, stride=4) + bias.repeat(1, 8, 8)
    torch.testing.assert_close(model.arrange(decoder.patches(x)), frame)


def test_vectors() -> None:
    model = ObservationModel(small().world_model, (7,))
    assert model.encode(torch.randn(5, 7)).shape == (5, 3, 4)
    assert model.decode(torch.rand(5, 12)).shape == (5, 7)


@pytest.mark.parametrize(
    ("encoder", "shape", "message"),
    [
        ("patch", (1, 84, 84), "takes frames of 16, 32, 64, 128, ... pixels, but got 84"),
        ("patch", (1, 24, 24), "--world-model.encoder conv"),
        ("patch", (1, 8, 8), "but got 8"),
        ("conv", (1, 3, 3), "frames of 3 x 3 are too small"),
        ("conv", (1, 64, 48), "square frames, but these are 64 x 48: set --env-options.size"),
        ("patch", (3, 64, 32), "square frames, but these are 64 x 32"),
        ("conv", (64, 64), "images (channels, height, width) or vectors (numbers,), but have shape (64, 64)"),
    ],
)
def test_errors_say_what_to_do(encoder: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ObservationModel(small(world_model__encoder=encoder).world_model, shape)


@pytest.mark.parametrize("encoder", ["conv", "patch"])
def test_pixels_are_scaled_and_come_back(encoder: str) -> None:
    model = ObservationModel(small(world_model__encoder=encoder).world_model, (2, 32, 32))
    pixels = (torch.arange(2 * 2 * 32 * 32) * 97 % 256).to(torch.uint8).view(2, 2, 32, 32)
    scaled = model.scale(pixels)
    assert (scaled.min(), scaled.max(), scaled.dtype) == (0, 1, torch.float32)
    assert torch.equal(model.arrange(scaled), pixels / 255)
    assert torch.equal(model.unscale(scaled), pixels)
    assert set(model.unscale(scaled * 10 - 5).unique().tolist()) >= {0, 255}  # cut, not wrapped


def test_numbers_of_any_scale_come_back() -> None:
    model = ObservationModel(small().world_model, (3,))
    x = torch.tensor([[-1e4, 0.0, math.e - 1]], dtype=torch.float64)
    scaled = model.scale(x)
    assert scaled.dtype == torch.float32  # whatever an environment sends, the networks take it
    assert scaled.tolist() == [pytest.approx([-math.log(1e4 + 1), 0.0, 1.0])]
    torch.testing.assert_close(model.unscale(scaled), x.float(), rtol=1e-4, atol=0)


def test_decoder_loss_is_a_unit_normals() -> None:
    """½ Σ (o - ô)² by hand, and -ln N(o; ô, 1) summed over pixels but for the constant n/2 ln 2π."""
    nll = ObservationModel.negative_log_likelihood
    assert nll(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])).tolist() == [2.5]
    o, o_hat = torch.rand(3, 2, 4, 4), torch.randn(3, 2, 4, 4)
    constant = 0.5 * math.log(2 * math.pi) * 32
    torch.testing.assert_close(nll(o, o_hat), -Normal(o_hat, 1).log_prob(o).sum((1, 2, 3)) - constant)


def test_unimix_reaches_the_encoder() -> None:
    model = ObservationModel(small(world_model__unimix=0.4).world_model, (3,))
    p = torch.softmax(model.encode(100 * torch.randn(50, 3)), -1)
    assert p.min() >= 0.4 / 4 - 1e-6
