"""Joint equality (MuJoCo): the coordinate of one joint is a polynomial of that of another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import JointRows


@dataclass(frozen=True)
class JointEquality(JointRows):
    """One row, q1 - (c0 + c1 q2 + c2 q2^2 + c3 q2^3 + c4 q2^4)."""

    name: str = "joint"
    summary: str = "a joint is a polynomial of another: `c0` to `c4`"
    mjcf: str = "joint"
    soft_synonyms: tuple[str, ...] = ("tendon",)
    parameters: tuple[str, ...] = ("c0", "c1", "c2", "c3", "c4")

    def residual(self, q1: Tensor, q2: Tensor, parameters: Tensor) -> Tensor:
        """The difference of q1 and the polynomial [rad or m]."""
        return q1 - _polynomial(parameters, q2)

    def slopes(self, q1: Tensor, q2: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """1 and minus the polynomial's slope."""
        return torch.ones_like(q1), -_polynomial(_derivative(parameters), q2)

    def bias(self, q1: Tensor, q2: Tensor, qd1: Tensor, qd2: Tensor, parameters: Tensor) -> Tensor:
        """Minus the polynomial's curvature times qd2^2."""
        return -_polynomial(_derivative(_derivative(parameters)), q2) * qd2 * qd2


def _polynomial(coefficients: Tensor, x: Tensor) -> Tensor:
    """Horner's rule; the constant term comes first."""
    value = torch.zeros_like(x)
    for c in coefficients.unbind(-1)[::-1]:
        value = value * x + c
    return value


def _derivative(coefficients: Tensor) -> Tensor:
    powers = range(1, coefficients.shape[-1])
    return torch.stack([k * coefficients[..., k] for k in powers], -1)


KIND = JointEquality()
