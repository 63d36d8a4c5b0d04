"""Neural network of the remaining joint force, which fades to zero outside of the data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FADE_START = 1.2
"""Distance from the mean state, over the largest in the data, at which the force starts to fade."""


class Network(nn.Module):
    """Joint force as a function of positions, velocities and accelerations, for `identify(residual=...)`.

    The force is bounded by the size of the residuals in the log, and fades to zero away from its states.

    Args:
        dofs: number of dofs of the robot.
        hidden: width of the two hidden layers.
        decay: weight of the mean square of the weights in the loss.

    Attributes:
        middle: mean state of the log, `[3 dofs]`.
        spread: standard deviation of the states, `[3 dofs]`.
        reach: largest distance of a state from the mean, in standard deviations.
        size: bound of the force of each dof, `[dofs]`.
    """

    middle: Tensor
    spread: Tensor
    reach: Tensor
    size: Tensor

    def __init__(self, dofs: int, hidden: int = 32, decay: float = 1e-3) -> None:
        super().__init__()
        self.decay = decay
        self.shape = {"dofs": dofs, "hidden": hidden, "decay": decay}
        kind = torch.float64
        self.layers = nn.Sequential(
            nn.Linear(3 * dofs, hidden, dtype=kind), nn.Tanh(), nn.Linear(hidden, hidden, dtype=kind),
            nn.Tanh(), nn.Linear(hidden, dofs, dtype=kind),
        )  # fmt: skip
        for last in list(self.layers[-1].parameters()):
            nn.init.zeros_(last)  # zero force before training
        self.register_buffer("middle", torch.zeros(3 * dofs, dtype=kind))
        self.register_buffer("spread", torch.ones(3 * dofs, dtype=kind))
        self.register_buffer("reach", torch.ones((), dtype=kind))
        self.register_buffer("size", torch.ones(dofs, dtype=kind))

    def prepare(self, q: Tensor, qd: Tensor, qdd: Tensor, error: Tensor) -> None:
        """Set the scales from states and residuals, each `[samples, dofs]`, before training."""
        x = torch.cat([q, qd, qdd], -1)
        self.middle, self.spread = x.mean(0), x.std(0).clamp_min(1e-9)
        self.reach = self._away(x).max()
        self.size = 3 * error.std(0)

    def _away(self, x: Tensor) -> Tensor:
        scaled = (x - self.middle) / self.spread
        return scaled.square().mean(-1).sqrt()

    def forward(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Joint forces, `[*batch, dofs]`, of states of the same shape."""
        x = torch.cat([q, qd, qdd], -1)
        out = self.layers((x - self.middle) / self.spread).tanh()
        over = (self._away(x) / self.reach - FADE_START).clamp_min(0) / (FADE_START - 1)
        return self.size * out * (-over.square()).exp()[..., None]

    def regularizer(self) -> Tensor:
        """Term that is added to the normalised mean square error in training, `[]`."""
        weights = [x for x in self.layers.parameters() if x.ndim == 2]
        total = sum((x.square().sum() for x in weights), weights[0].new_zeros(()))
        return self.decay * total / sum(x.numel() for x in weights)


class Shrunk(nn.Module):
    """The force of a module, multiplied by a factor for each dof.

    Args:
        module: function of positions, velocities and accelerations `[*batch, dofs]`.
        part: factors between 0 and 1, `[dofs]`.
    """

    part: Tensor

    def __init__(self, module: nn.Module, part: Tensor) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("part", part)

    def forward(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Joint forces, `[*batch, dofs]`."""
        return self.part * self.module(q, qd, qdd)
