"""A mechanism as inputs of an implicit equation: its parameters, apart from its other fields.

An equation stores the other fields only, so that a checkpoint can free the parameters.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import Tensor

from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.mechanism import Mechanism

_FIXED = tuple(field.name for field in fields(Mechanism) if field.name not in PARAMETERS)


def fixed_fields(mech: Mechanism) -> dict[str, Any]:
    """The fields of a mechanism that are not parameters."""
    return {name: getattr(mech, name) for name in _FIXED}


def parameters_of(mech: Mechanism) -> list[Tensor]:
    """The parameters of a mechanism, in the order of `PARAMETERS`."""
    return [getattr(mech, name) for name in PARAMETERS]


def split_mechanism(
    fixed: dict[str, Any], inputs: tuple[Tensor, ...]
) -> tuple[Mechanism, tuple[Tensor, ...]]:
    """The mechanism with the parameters that the inputs start with, and the other inputs."""
    named: dict[str, Any] = dict(zip(PARAMETERS, inputs, strict=False))
    return Mechanism(**fixed, **named), inputs[len(named) :]


def without_gradients(mech: Mechanism) -> Mechanism:
    """The mechanism with parameters that carry no gradients."""
    return split_mechanism(fixed_fields(mech), tuple(x.detach() for x in parameters_of(mech)))[0]
