from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from twm.nn.optimiser import Optimiser


class Point(nn.Module):
    def __init__(self, *values: float) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(values))


def test_first_step_by_hand() -> None:
    """Adam's first step is lr·g / (|g| + eps) with eps = 1e-5."""
    point = Point(1.0, 1.0)
    optimiser = Optimiser(point, lr=0.1)
    point.x.grad = torch.tensor([2.0, 1e-5])
    norm = optimiser.step()
    assert norm.item() == pytest.approx(2.0)
    assert point.x.tolist() == pytest.approx([1 - 0.1 * 2 / (2 + 1e-5), 1 - 0.1 * 0.5], rel=1e-6)
    assert point.x.grad is None


def test_gradients_are_clipped_over_the_whole_module() -> None:
    """Norm 5e-5 clipped to 1e-5: gradients (0.6, 0.8)·1e-5, small enough for eps to show it."""
    point = Point(0.0, 0.0)
    optimiser = Optimiser(point, lr=1.0, clip=1e-5)
    point.x.grad = torch.tensor([3e-5, 4e-5])
    assert optimiser.step().item() == pytest.approx(5e-5)
    # torch divides by norm + 1e-6, so what remains of the norm is 1e-5 · 5e-5 / 5.1e-5.
    g = torch.tensor([3e-5, 4e-5]) * (1e-5 / 5.1e-5)
    assert point.x.tolist() == pytest.approx((-g / (g + 1e-5)).tolist(), rel=1e-4)


def test_weight_decay_adds_to_the_gradient() -> None:
    """Without a gradient of its own, x = 1 is pulled by 1e-5: half a step against eps."""
    point = Point(1.0)
    optimiser = Optimiser(point, lr=0.1, weight_decay=1e-5)
    point.x.grad = torch.zeros(1)
    optimiser.step()
    assert point.x.item() == pytest.approx(1 - 0.1 * 0.5, rel=1e-5)


def test_frozen_parameters_stay() -> None:
    point = Point(1.0)
    point.extra = nn.Parameter(torch.ones(1), requires_grad=False)
    assert len(Optimiser(point, lr=0.1).parameters) == 1


def test_state_goes_on_where_it_stopped() -> None:
    def run(steps: int, point: Point, optimiser: Optimiser, first: int = 0) -> None:
        for step in range(first, first + steps):
            point.x.grad = torch.tensor([step + 1.0, -0.5 * step])
            optimiser.step()

    whole = Point(1.0, 2.0)
    run(6, whole, Optimiser(whole, 0.1))
    first = Point(1.0, 2.0)
    optimiser = Optimiser(first, 0.1)
    run(3, first, optimiser)
    second = Point(*first.x.tolist())
    resumed = Optimiser(second, 0.1)
    resumed.load_state(optimiser.state())
    run(3, first, optimiser, first=3)  # the two share nothing
    run(3, second, resumed, first=3)
    assert torch.equal(first.x, whole.x)
    assert torch.equal(second.x, whole.x)


@pytest.mark.parametrize("saved", ["rows", "columns"])
def test_moments_lie_in_memory_as_their_parameters_do(saved: str) -> None:
    """A state saved with another layout, by an earlier version, goes on with the same numbers."""

    def make(layout: str) -> tuple[nn.Linear, Optimiser]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 2, bias=False)
        if layout == "columns":
            layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
        return layer, Optimiser(layer, 0.1)

    def step(layer: nn.Linear, optimiser: Optimiser, gradient: Tensor) -> None:
        layer.weight.grad = torch.empty_like(layer.weight).copy_(gradient)
        optimiser.step()

    gradients = torch.randn(2, 2, 3)
    (whole, its), (part, first), (other, second) = make("columns"), make(saved), make("columns")
    for gradient in gradients:
        step(whole, its, gradient)
    step(part, first, gradients[0])
    other.load_state_dict(part.state_dict())
    second.load_state(first.state())
    step(other, second, gradients[1])
    assert torch.equal(other.weight, whole.weight)
