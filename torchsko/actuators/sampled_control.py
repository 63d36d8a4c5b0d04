"""Controls that are constant over a time step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.actuators.actuators import Actuators
from torchsko.actuators.tendons import Tendons


@dataclass(frozen=True, eq=False)
class SampledControl:
    """Controls of actuators, or joint forces, that are constant over a time step.

    Attributes:
        ctrl: controls, `[*batch, n]`; joint forces `[*batch, num_dof]` without actuators [N m or N].
        actuators: None if controls are joint forces.
        activation: at the start of the step, `[*batch, m]`.
        rest: state of a controller after the step besides activations, `[*batch, ...]`.
        tendons: tendons that act in place of those of the robot file; None for these.
    """

    ctrl: Tensor
    actuators: Actuators | None
    activation: Tensor
    rest: Tensor
    tendons: Tendons | None = None

    def memory(self, activation: Tensor) -> Tensor:
        """The memory of a controller after the step, with activations `[*batch, m]`."""
        if not activation.shape[-1]:
            return self.rest
        return torch.cat([activation, self.rest], -1) if self.rest.shape[-1] else activation
