"""Entries of a torque regressor that all its others follow from: what has to be filtered of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.base_parameters import BaseParameters, anywhere
from torchsko.verbs.regressors import torque_regressor


@dataclass(frozen=True, eq=False)
class BaseColumns:
    """Columns that lead base parameters, at the dofs that these act on; the others are their combinations.

    Attributes:
        entries: places in a regressor `[num_dof, inertial]`, `[leading]`.
        places: of the same among dofs and base parameters, `[leading]`.
        matrix: takes base parameters' columns to all, `[base, inertial]`.
        dofs: number of dofs.
    """

    entries: Tensor
    places: Tensor
    matrix: Tensor
    dofs: int

    @property
    def base(self) -> int:
        """Number of base parameters."""
        return len(self.matrix)

    @classmethod
    def of(cls, mech: Mechanism, base: BaseParameters) -> BaseColumns:
        """That of a mechanism: what is zero at random states is zero always."""
        Y = torque_regressor(mech, *anywhere(mech, 4, seed=1)).flatten(-2)
        acts = (Y[..., base.independent] != 0).any(0)
        dof, number = acts.nonzero().unbind(-1)
        inertial, size = Y.shape[-1], len(base)
        entries = dof * inertial + base.independent[number]
        return cls(entries, dof * size + number, base.matrix, mech.num_dof)

    def select(self, Y: Tensor) -> Tensor:
        """The entries of regressors `[*batch, num_dof, num_bodies, 10]`: `[*batch, leading]`."""
        return Y.flatten(-3).index_select(-1, self.entries)

    def forces(self, phi: Tensor) -> Tensor:
        """What takes entries to forces of inertial numbers `[inertial]`: `[leading, num_dof]`."""
        dof, number = self.places // self.base, self.places % self.base
        out = phi.new_zeros(len(self.places), self.dofs)
        rows = torch.arange(len(dof), device=phi.device)
        return out.index_put((rows, dof), (self.matrix @ phi)[number])

    def column_index(self, others: int) -> Tensor:
        """Where columns are among entries, so many others of each dof, and a zero: `[num_dof, columns]`."""
        lead, dofs = len(self.places), torch.arange(self.dofs, device=self.places.device)
        # Each place is read where its number stands; where none does, of a zero behind them all.
        own = dofs.new_full((self.dofs * self.base,), lead + others * self.dofs)
        own = own.index_copy(0, self.places, torch.arange(lead, device=dofs.device))
        after = lead + self.dofs * torch.arange(others, device=dofs.device) + dofs[:, None]
        return torch.cat([own.unflatten(0, (self.dofs, self.base)), after], -1)

    def columns(self, x: Tensor, order: Tensor, others: Tensor | None = None) -> Tensor:
        """Columns of base parameters, then others, `[*batch, num_dof, columns]`.

        Args:
            x: entries, `[*batch, leading]`.
            order: where each column is, from `order`.
            others: columns that come after them, `[*batch, others, num_dof]`.
        """
        parts = [x] if others is None else [x, others.flatten(-2)]
        found = torch.cat([*parts, x.new_zeros(*x.shape[:-1], 1)], -1)
        at = order.flatten().expand(*x.shape[:-1], -1)
        return found.gather(-1, at).unflatten(-1, order.shape)
