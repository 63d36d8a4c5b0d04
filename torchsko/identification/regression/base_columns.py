"""Independent entries of a torque regressor, from which its other entries are linear combinations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.base_parameters import BaseParameters, anywhere
from torchsko.verbs.regressors import torque_regressor


@dataclass(frozen=True, eq=False)
class BaseColumns:
    """Regressor entries of base parameters at the dofs where they act. Only these need filtering.

    Attributes:
        entries: indices into a flattened regressor `[num_dof, inertial]`, `[entries]`.
        places: indices into flattened dofs and base parameters `[num_dof, base]`, `[entries]`.
        matrix: map from columns of base parameters to all columns, `[base, inertial]`.
        dofs: number of dofs.
    """

    entries: Tensor
    places: Tensor
    matrix: Tensor
    dofs: int

    @property
    def num_base(self) -> int:
        """Number of base parameters."""
        return len(self.matrix)

    @classmethod
    def of(cls, mech: Mechanism, base: BaseParameters) -> BaseColumns:
        """Find the entries of a mechanism; an entry that is zero at random states is zero everywhere."""
        Y = torque_regressor(mech, *anywhere(mech, 4, seed=1)).flatten(-2)
        acts = (Y[..., base.independent] != 0).any(0)
        dof, number = acts.nonzero().unbind(-1)
        inertial, size = Y.shape[-1], len(base)
        entries = dof * inertial + base.independent[number]
        return cls(entries, dof * size + number, base.matrix, mech.num_dof)

    def select(self, Y: Tensor) -> Tensor:
        """Select the entries `[*batch, entries]` of regressors `[*batch, num_dof, num_bodies, 10]`."""
        return Y.flatten(-3).index_select(-1, self.entries)

    def forces(self, phi: Tensor) -> Tensor:
        """Matrix from entries to the forces of inertial parameters `[inertial]`, `[entries, num_dof]`."""
        dof, number = self.places // self.num_base, self.places % self.num_base
        out = phi.new_zeros(len(self.places), self.dofs)
        rows = torch.arange(len(dof), device=phi.device)
        return out.index_put((rows, dof), (self.matrix @ phi)[number])

    def column_index(self, others: int) -> Tensor:
        """Index `[num_dof, columns]` of columns in a row of entries, `others` values by dof, and a zero."""
        lead, dofs = len(self.places), torch.arange(self.dofs, device=self.places.device)
        # Columns without an entry read the zero at the end.
        index = dofs.new_full((self.dofs * self.num_base,), lead + others * self.dofs)
        index = index.index_copy(0, self.places, torch.arange(lead, device=dofs.device))
        after = lead + self.dofs * torch.arange(others, device=dofs.device) + dofs[:, None]
        return torch.cat([index.unflatten(0, (self.dofs, self.num_base)), after], -1)

    def columns(self, x: Tensor, order: Tensor, others: Tensor | None = None) -> Tensor:
        """Columns of base parameters and then of other values, `[*batch, num_dof, columns]`.

        Args:
            x: entries, `[*batch, entries]`.
            order: index of each column, from `column_index`.
            others: values of the columns that follow, `[*batch, others, num_dof]`.
        """
        parts = [x] if others is None else [x, others.flatten(-2)]
        row = torch.cat([*parts, x.new_zeros(*x.shape[:-1], 1)], -1)
        index = order.flatten().expand(*x.shape[:-1], -1)
        return row.gather(-1, index).unflatten(-1, order.shape)
