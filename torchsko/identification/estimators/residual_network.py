"""What no law of the library explains: a small network of the state, that fades where there were no data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EDGE = 1.2
"""Distance over the largest of the data from which on the network's force fades."""


class Network(nn.Module):
    """Force of a network of positions, velocities and accelerations, for `fit(..., residual=...)`.

    Its force is bounded by the errors that it was trained on, and fades away from the states of the log:
    there the robot is the rigid one, with friction.

    Args:
        dofs: of the robot.
        hidden: width of its two layers.
        decay: weight of its regulariser, the mean square of its weights.

    Attributes:
        middle: of the states of the log, `[3 dofs]`.
        spread: of the states.
        reach: the largest distance from the middle among them, in spreads.
        size: of the force of each dof, `[dofs]`.
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
            nn.init.zeros_(last)  # no force, to start with
        self.register_buffer("middle", torch.zeros(3 * dofs, dtype=kind))
        self.register_buffer("spread", torch.ones(3 * dofs, dtype=kind))
        self.register_buffer("reach", torch.ones((), dtype=kind))
        self.register_buffer("size", torch.ones(dofs, dtype=kind))

    def prepare(self, q: Tensor, qd: Tensor, qdd: Tensor, error: Tensor) -> None:
        """Take the scales of states and errors, each `[samples, dofs]`, before training."""
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
        over = (self._away(x) / self.reach - EDGE).clamp_min(0) / (EDGE - 1)
        return self.size * out * (-over.square()).exp()[..., None]

    def regularizer(self) -> Tensor:
        """What is added to the mean square error over its noise while it is trained, `[]`."""
        weights = [x for x in self.layers.parameters() if x.ndim == 2]
        total = sum((x.square().sum() for x in weights), weights[0].new_zeros(()))
        return self.decay * total / sum(x.numel() for x in weights)


class Shrunk(nn.Module):
    """A module's force times a part of it that is trusted.

    Args:
        module: of `[*batch, dofs]` positions, velocities, accelerations.
        part: of each dof, 0 to 1, `[dofs]`.
    """

    part: Tensor

    def __init__(self, module: nn.Module, part: Tensor) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("part", part)

    def forward(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Joint forces, `[*batch, dofs]`."""
        return self.part * self.module(q, qd, qdd)
