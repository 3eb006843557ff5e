"""Two-hot scalars on a symlog grid."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from twm.nn.two_hot import TwoHot, symexp, symlog


def test_symlog_by_hand() -> None:
    x = torch.tensor([0.0, math.e - 1, -(math.e**2 - 1)])
    assert symlog(x).tolist() == pytest.approx([0.0, 1.0, -2.0])
    assert symexp(symlog(x)).tolist() == pytest.approx(x.tolist())


def test_encode_by_hand() -> None:
    """Grid -2, -1, 0, 1, 2. symlog(e^0.25 - 1) = 0.25 lies a quarter of the way from 0 to 1."""
    head = TwoHot(bins=5, limit=2.0)
    x = torch.tensor([math.exp(0.25) - 1, 0.0, -(math.exp(1.5) - 1), 1e6])
    expected = [[0, 0, 0.75, 0.25, 0], [0, 0, 1, 0, 0], [0.5, 0.5, 0, 0, 0], [0, 0, 0, 0, 1]]
    torch.testing.assert_close(head.encode(x), torch.tensor(expected), rtol=0, atol=1e-6)


def test_loss_by_hand() -> None:
    """p = (⅛, ⅛, ½, ⅛, ⅛) and target (0, 0, ¾, ¼, 0): ¾ ln 2 + ¼ ln 8 = 1.5 ln 2."""
    head = TwoHot(bins=5, limit=2.0)
    logits = torch.tensor([[1 / 8, 1 / 8, 1 / 2, 1 / 8, 1 / 8]]).log()
    assert head.loss(logits, torch.tensor([math.exp(0.25) - 1])).item() == pytest.approx(1.5 * math.log(2))


def test_mean_by_hand() -> None:
    """Half on 1, half on 2: symexp(1.5) = e^1.5 - 1."""
    head = TwoHot(bins=5, limit=2.0)
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.5, 0.5]]).log()
    assert head.mean(logits).item() == pytest.approx(math.exp(1.5) - 1, rel=1e-6)


def test_an_untrained_head_promises_exactly_nothing() -> None:
    assert TwoHot().mean(torch.zeros(3, 63)).tolist() == [0.0, 0.0, 0.0]


@given(st.floats(-20_000, 20_000))
def test_mean_returns_what_was_encoded(x: float) -> None:
    head = TwoHot()
    target = head.encode(torch.tensor([x]))
    assert target.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert int((target > 0).sum()) <= 2
    assert head.mean(target.log()).item() == pytest.approx(x, rel=1e-4, abs=1e-5)
