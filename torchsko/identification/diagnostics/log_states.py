"""Filtered samples of a log, and the share of their forces that the nominal robot leaves unexplained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchsko.identification.signals.preprocess import FilteredMotion
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.dynamics import inverse_dynamics

MAX_SAMPLES = 400
"""Number of states that are examined, evenly spread."""

MAX_BATCH = 20_000
"""Number of states for which forces are computed at once."""

SLOW = 0.05
"""Speed over the root mean square speed below which dry friction may have either sign."""


class MappedColumns(NamedTuple):
    """Factors of the columns of several corrected logs, and zeros that are subtracted from positions.

    Attributes:
        position: `[maps, num_q]`.
        zero: `[maps, num_q]` [rad or m].
        rate: `[maps, num_dof]`.
        force: `[maps, num_dof]`.
    """

    position: Tensor
    zero: Tensor
    rate: Tensor
    force: Tensor

    @classmethod
    def of(cls, mech: Mechanism, count: int) -> MappedColumns:
        """`count` logs without corrections."""
        q, qd = (mech.gravity.new_ones(count, n) for n in (mech.num_q, mech.num_dof))
        return cls(q, torch.zeros_like(q), qd, qd.clone())

    def parts(self, size: int) -> Iterator[MappedColumns]:
        """At most `size` logs at a time."""
        for parts in zip(*(x.split(size) for x in self), strict=True):
            yield MappedColumns(*parts)


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

    def mapped(self, columns: MappedColumns) -> States:
        """The states of several corrections of the log, with a batch dimension `[maps]`."""
        return replace(
            self,
            q=self.q * columns.position[:, None] - columns.zero[:, None],
            qd=self.qd * columns.rate[:, None],
            qdd=self.qdd * columns.rate[:, None],
            tau=self.tau * columns.force[:, None],
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


def unexplained_shares(states: States, columns: MappedColumns, scale: float) -> Tensor:
    """Unexplained shares after several corrections of a log, `[maps, num_dof]`."""
    size = max(1, MAX_BATCH // max(1, states.q.shape[-2]))
    return torch.cat([states.mapped(x).unexplained(scale) for x in columns.parts(size)])
