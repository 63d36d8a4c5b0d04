"""Gear: the coordinate of one joint is proportional to that of another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.constraints.row_kinds import JointRows


@dataclass(frozen=True)
class Gear(JointRows):
    """One row, q1 - ratio q2 - offset."""

    name: str = "gear"
    summary: str = "a joint is a linear function of another: `ratio`, `offset`"
    mjcf: str = "joint"
    parameters: tuple[str, ...] = ("ratio", "offset")

    def residual(self, q1: Tensor, q2: Tensor, parameters: Tensor) -> Tensor:
        """The difference q1 - ratio q2 - offset [rad or m]."""
        ratio, offset = parameters.unbind(-1)
        return q1 - ratio * q2 - offset

    def slopes(self, q1: Tensor, q2: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """1 and -ratio."""
        return torch.ones_like(q1), -parameters[..., 0] + torch.zeros_like(q2)

    def bias(self, q1: Tensor, q2: Tensor, qd1: Tensor, qd2: Tensor, parameters: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(qd1 + qd2)


KIND = Gear()
