"""The checker behind the shape annotations (see conftest.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import beartype
from beartype.roar import BeartypeDecorHintPepUnsupportedException


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, refusing arguments and results of another shape or type than it is annotated with.

    beartype cannot read generic named tuples (0.23); where one occurs, those annotations alone go unchecked.
    """
    try:
        return beartype(function)
    except BeartypeDecorHintPepUnsupportedException:
        return function
