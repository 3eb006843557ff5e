"""The shape annotations are really checked in tests, in functions, methods and dataclasses."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from twm.nn import mlp


def test_annotated_functions_of_the_package_refuse_wrong_shapes() -> None:
    """Any annotated function would do: this one maps numbers (..., inputs) to (..., outputs)."""
    network = mlp.MLP(3, 8, 1, 2)
    assert network(torch.zeros(4, 3)).shape == (4, 2)
    with pytest.raises(TypeCheckError):
        network(torch.zeros(4, 3, dtype=torch.bool))
