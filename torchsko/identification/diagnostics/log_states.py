"""Filtered samples of a log, and the share of their forces that the nominal robot leaves unexplained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.identification.logs.calibration import AffineMap
from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import inverse_dynamics

MAX_SAMPLES = 400
"""Number of states that are examined, evenly spread."""

MAX_BATCH = 20_000
"""Number of states for which forces are computed at once."""

SLOW = 0.05
"""Speed over the root mean square speed below which dry friction may have either sign."""


@dataclass(frozen=True, eq=False)
class States:
    """Filtered samples of a log.

    Attributes:
        mech: the nominal robot, lossless.
        q: `[*batch, samples, num_q]`.
        qd: `[*batch, samples, num_dof]`.
        qdd: `[*batch, samples, num_dof]`.
        tau: `[*batch, samples, num_dof]`.
        measured: dofs that have a measured force, `[num_dof]`.
    """

    mech: Mechanism
    q: Tensor
    qd: Tensor
    qdd: Tensor
    tau: Tensor
    measured: Tensor

    @classmethod
    def of(cls, mech: Mechanism, motions: Sequence[FilteredMotion]) -> States:
        """Samples at which all measured forces are valid."""
        measured = torch.stack([m.valid.bool().any(0) for m in motions]).any(0)
        good = [m.valid.bool()[:, measured].all(1) for m in motions]
        parts = [[getattr(m, name) for m in motions] for name in ("q", "qd", "qdd", "tau")]
        q, qd, qdd, tau = (
            torch.cat([x[rows] for x, rows in zip(part, good, strict=True)]) for part in parts
        )
        return cls(mech, q, qd, qdd, tau, measured).thinned(MAX_SAMPLES)

    def thinned(self, samples: int) -> States:
        """At most twice `samples` states, evenly spread."""
        thin = slice(None, None, max(1, self.q.shape[-2] // samples))
        q, qd, qdd, tau = (x[..., thin, :] for x in (self.q, self.qd, self.qdd, self.tau))
        return replace(self, q=q, qd=qd, qdd=qdd, tau=tau)

    def mapped(self, maps: Sequence[AffineMap], mech: Mechanism | None = None) -> States:
        """The states of several calibrations of the log, with a batch dimension `[maps]`.

        Args:
            maps: calibrations.
            mech: replaces the nominal robot.
        """

        def stacked(name: str) -> Tensor:
            return torch.stack([torch.as_tensor(getattr(x, name)) for x in maps]).to(self.q)

        rate = stacked("rate").mT
        return States(
            self.mech if mech is None else mech,
            self.q @ stacked("position").mT - stacked("zero")[:, None],
            self.qd @ rate,
            self.qdd @ rate,
            self.tau @ stacked("force").mT,
            self.measured,
        )

    def forces(self) -> tuple[Tensor, Tensor]:
        """Measured and nominal forces without friction and offset, `[*batch, samples, num_dof]` each."""
        force = inverse_dynamics(self.mech, self.q, self.qd, self.qdd)
        speed = self.qd.square().mean(-2, keepdim=True).sqrt().clamp_min(1e-300)
        offset = self.qd.new_ones(1).expand_as(self.qd)
        friction = torch.stack([self.qd, (self.qd / (SLOW * speed)).tanh(), offset], -1)
        basis = torch.linalg.qr(friction.movedim(-2, -3))[0]
        both = torch.stack([self.tau.nan_to_num(0.0), force], -1).movedim(-2, -3)
        rest = both - basis @ (basis.mT @ both)
        tau, nominal = rest.movedim(-3, -2).unbind(-1)
        return tau, nominal

    def unexplained(self, scale: float = 1.0) -> Tensor:
        """Share of each force that the nominal robot and friction leave unexplained, `[*batch, num_dof]`.

        Args:
            scale: measured over nominal forces.

        Returns:
            nan for forces that were not measured.
        """
        tau, nominal = self.forces()
        rest, size = ((tau - scale * nominal), tau)
        share = rest.square().sum(-2) / size.square().sum(-2).clamp_min(1e-300)
        return torch.where(self.measured, share, torch.nan)

    def scales(self) -> tuple[Tensor, Tensor]:
        """Ratio of measured to nominal forces by least squares, and their correlation, `[num_dof]` each.

        nan for forces that were not measured or that are zero.
        """
        tau, nominal = self.forces()
        product, square, size = (
            (a * b).sum(-2) for a, b in ((tau, nominal), (nominal, nominal), (tau, tau))
        )
        used = self.measured & (square > 0) & (size > 0)
        nan = torch.full_like(product, torch.nan)
        ratio = torch.where(used, product / square.clamp_min(1e-300), nan)
        return ratio, torch.where(used, product * (square * size).clamp_min(1e-300).rsqrt(), nan)


def unexplained_shares(
    states: States, maps: Sequence[AffineMap], scale: float, mech: Mechanism | None = None
) -> Tensor:
    """Unexplained shares of several calibrations of a log, `[maps, num_dof]`."""
    size = max(1, MAX_BATCH // max(1, states.q.shape[-2]))
    parts = (maps[k : k + size] for k in range(0, len(maps), size))
    return torch.cat([states.mapped(x, mech).unexplained(scale) for x in parts])
