"""Time of the paper's convolutions, forwards and backwards: PyTorch's, and the fast ones of twm.nn.conv.

    python scripts/conv_bench.py                      the paper's layers, 400 frames
    python scripts/conv_bench.py --layers cpu         the layers of the cpu preset, 600 frames
    python scripts/conv_bench.py --frames 1600 --repeats 5 --skip nchw,nhwc

All variants of a layer and the matrix product that stands for the machine's peak are timed in turn, in one process, and
the shortest time of all repeats counts: others may use the machine meanwhile, and they only ever make it slower. Look
at the load (printed) before you believe a number. "of peak" is counted work / time / peak; Winograd's algorithm
does less than the counted work, so it can exceed 1.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from twm.nn.conv import Conv2d, ConvTranspose2d
from twm.nn.memory import tune_allocator

Layer = Conv2d | ConvTranspose2d

LAYERS: dict[str, list[tuple[Layer, int]]] = {
    "paper": [
        (Conv2d(4, 48, 4, 2, activation=True), 64),
        (Conv2d(48, 96, 4, 2, activation=True), 31),
        (Conv2d(96, 192, 4, 2, activation=True), 14),
        (Conv2d(192, 384, 4, 2, activation=True), 6),
        (ConvTranspose2d(768, 192, 5, 2, activation=True), 1),
        (ConvTranspose2d(192, 96, 5, 2, activation=True), 5),
        (ConvTranspose2d(96, 48, 6, 2, activation=True), 13),
        (ConvTranspose2d(48, 4, 6, 2), 30),
    ],
    "cpu": [
        (Conv2d(24, 48, 4, 2, 1), 16),
        (Conv2d(48, 96, 4, 2, 1), 8),
        (ConvTranspose2d(96, 48, 4, 2, 1), 4),
        (ConvTranspose2d(48, 24, 4, 2, 1), 8),
    ],
}
FRAMES = {"paper": 400, "cpu": 600}


def multiply(a: Tensor, b: Tensor, out: Tensor) -> float:
    start = time.perf_counter()
    torch.mm(a, b, out=out)
    return time.perf_counter() - start


def forwards_and_backwards(function: Callable[[Tensor], Tensor], images: Tensor) -> tuple[float, float]:
    start = time.perf_counter()
    y = function(images)
    forwards = time.perf_counter() - start
    grad = torch.rand_like(y)
    start = time.perf_counter()
    y.backward(grad)
    return forwards, time.perf_counter() - start


def gigaflop(layer: Layer, size: int, frames: int, first: bool) -> float:
    """Counted work: 2 operations per multiply-add, forwards and for each of the two gradients (frames need none)."""
    positions = size**2 if layer.transposed else layer.output_size(size) ** 2
    return (2 if first else 3) * 2e-9 * frames * positions * layer.weight.numel()


def nchw(layer: Layer) -> nn.Module:
    """PyTorch's layer on ordinary tensors."""
    kind = nn.ConvTranspose2d if layer.transposed else nn.Conv2d
    module = kind(layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.padding)
    return nn.Sequential(module, nn.SiLU()) if layer.activation else module


def measure(layer: Layer, size: int, frames: int, first: bool, best: dict[str, list[float]]) -> None:
    """One repeat: each variant forwards and backwards; ``best`` keeps the shortest times."""
    x = torch.rand(frames, size, size, layer.inputs)
    variants: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
        "nchw": (nchw(layer), x.permute(0, 3, 1, 2).contiguous()),
        "nhwc": (layer.plain, x),
        "fast": (layer, x),
    }
    for name in best:
        function, images = variants[name]
        layer.zero_grad()
        times = forwards_and_backwards(function, images.detach().requires_grad_(not first))
        best[name] = [min(a, b) for a, b in zip(best[name], times)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", choices=LAYERS, default="paper")
    parser.add_argument("--frames", type=int)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--skip", default="", help="variants to leave out: nchw, nhwc")
    options = parser.parse_args()
    tune_allocator()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    frames = options.frames or FRAMES[options.layers]
    layers = LAYERS[options.layers]
    variants = [v for v in ("nchw", "nhwc", "fast") if v not in options.skip.split(",")]
    best = [{v: [float("inf")] * 2 for v in variants} for _ in layers]

    a, b, c = (torch.rand(2048, 2048) for _ in range(3))
    peak = 0.0
    for _ in range(options.repeats):
        for i, (layer, size) in enumerate(layers):
            measure(layer, size, frames, i == 0, best[i])
            peak = max(peak, 2e-9 * 2048**3 / multiply(a, b, c))

    print(f"{frames} frames, {options.threads} threads, peak {peak:.0f} GFLOPS, load {os.getloadavg()[0]:.1f}")
    print(f"{'ms forwards + backwards, of peak':34}" + "".join(f"{v:>24}" for v in variants))
    total, work = dict.fromkeys(variants, 0.0), 0.0
    for i, (layer, size) in enumerate(layers):
        name = f"{'transposed ' if layer.transposed else ''}{layer.inputs} to {layer.outputs}, {size} x {size}"
        gflop = gigaflop(layer, size, frames, i == 0)
        work += gflop
        cells = []
        for v in variants:
            forwards, backwards = best[i][v]
            total[v] += forwards + backwards
            share = gflop / (forwards + backwards) / peak
            cells.append(f"{1e3 * forwards:8.1f} +{1e3 * backwards:7.1f} {share:7.2f}")
        print(f"{name:34}" + "".join(cells))
    print(f"{'all':34}" + "".join(f"{1e3 * t:16.0f} {work / t / peak:7.2f}" for t in total.values()))
    print(f"{'units (seconds x GFLOPS)':34}" + "".join(f"{t * peak:24.0f}" for t in total.values()))


if __name__ == "__main__":
    main()
