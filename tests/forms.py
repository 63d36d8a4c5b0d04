"""Functions in the form of linear algebra that is asked for, dense or scalar."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torchsko.linalg.scalar_form import scalar_form

P, T = ParamSpec("P"), TypeVar("T")


def in_form(scalar: bool, function: Callable[P, T]) -> Callable[P, T]:
    """A function that runs in scalar form, or as it is."""
    return scalar_form()(function) if scalar else function
