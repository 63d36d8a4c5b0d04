"""Motion of the contact axes of cones: between a body and the inertial frame, or between two bodies.

All results are those of loops over cones (`torchsko.implicit.table_loop`). A *guard* `[*batch, C]` is zero
for contacts that are not active.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchsko.contact.contact_tables import DofTable
from torchsko.implicit.table_loop import Read, Table, Write, is_looped, table_loop
from torchsko.linalg.symmetric import mirror
from torchsko.utils.shapes import matvec


@dataclass(frozen=True, eq=False)
class Grounded:
    """Placement of cones between one body each and the inertial frame.

    Attributes:
        bodies: body of each cone, among all bodies and the inertial frame.
        placement: X, rows per velocity of the body in `torchsko.contact.body_motions`,
            `[*batch, C, size, 6]`.
    """

    bodies: Table
    placement: Tensor

    def motion(self, guard: Tensor, velocity: Tensor, *less: Tensor) -> Tensor:
        """Rows for the velocities of all bodies `[*batch, num_bodies + 1, 6]`, `[*batch, C, size]`.

        Args:
            guard: see above.
            velocity: of all bodies.
            *less: what is subtracted, `[*batch, C, size]`, or nothing.
        """
        rows = Read(self.placement, -3, is_sparse=True)
        return _motion(guard, rows, Read(velocity, -2, self.bodies), less)

    def wrenches(self, guard: Tensor, forces: Tensor, num_bodies: int) -> Tensor:
        """Sums X* f of `[*batch, C, size]` on each body, then zero, `[*batch, num_bodies + 1, 6]`."""
        reads = [Read(guard, -1), Read(self.placement, -3, is_sparse=True), Read(forces, -2)]
        writes = [Write(-2, self.bodies, num_bodies + 1)]
        return table_loop(lambda _, X, f: (matvec(X.mT, f),), reads, writes, guarded=True)[0]

    def stiffness(self, guard: Tensor, hessians: Tensor, num_bodies: int) -> Tensor:
        """Sums X* H X of `[*batch, C, size, size]` on each body, `[*batch, num_bodies + 1, 6, 6]`."""

        def of_cones(_: Tensor, X: Tensor, H: Tensor) -> tuple[Tensor]:
            # The half that is read has no product of linear rows, which are constant on a level plane.
            return (mirror((X.mT @ (H @ X)).mT),)

        reads = [
            Read(guard, -1),
            Read(self.placement, -3, is_sparse=True),
            Read(hessians, -3, is_sparse=True),
        ]
        writes = [Write(-3, self.bodies, num_bodies + 1)]
        return table_loop(of_cones, reads, writes, guarded=True)[0]

    def with_zeros_shown(self) -> Grounded:
        """The placement, whose zeros a trace knows."""
        return self


@dataclass(frozen=True, eq=False)
class Between:
    """Rows of cones between two bodies each, for the dofs that move one of them alone.

    Attributes:
        table: the dofs of each cone.
        jacobian: J, zero for repeated dofs, `[*batch, C, size, m]`.
    """

    table: DofTable
    jacobian: Tensor

    def motion(self, guard: Tensor, rates: Tensor, *less: Tensor) -> Tensor:
        """J x of `[*batch, num_dof]`, `[*batch, C, size]`; ``less`` is subtracted."""
        rows = Read(self.jacobian, -3, is_sparse=True)
        return _motion(guard, rows, Read(rates, -1, self.table.dofs), less)

    def forces(self, guard: Tensor, forces: Tensor, num_dof: int) -> Tensor:
        """Sum of J* f of `[*batch, C, size]`, `[*batch, num_dof]`."""
        reads = [Read(guard, -1), Read(self.jacobian, -3, is_sparse=True), Read(forces, -2)]
        writes = [Write(-1, self.table.dofs, num_dof)]
        return table_loop(lambda _, J, f: (matvec(J.mT, f),), reads, writes, guarded=True)[0]

    def stiffness(self, guard: Tensor, hessians: Tensor, num_dof: int) -> Tensor:
        """Sum of J* H J of `[*batch, C, size, size]`, `[*batch, num_dof, num_dof]`."""
        m = self.jacobian.shape[-1]
        row, column = torch.tril_indices(m, m, device=hessians.device)

        def of_cones(_: Tensor, J: Tensor, H: Tensor) -> tuple[Tensor]:
            return ((J.mT @ (H @ J))[..., row, column],)

        reads = [
            Read(guard, -1),
            Read(self.jacobian, -3, is_sparse=True),
            Read(hessians, -3, is_sparse=True),
        ]
        writes = [Write(-1, self.table.places, num_dof * (num_dof + 1) // 2)]
        (packed,) = table_loop(of_cones, reads, writes, guarded=True)
        unpacked = torch.tensor(self.table.unpacked, device=packed.device)
        return packed.index_select(-1, unpacked).unflatten(-1, (num_dof, num_dof))

    def dense(self, num_dof: int) -> Tensor:
        """J over all dofs, `[*batch, C, size, num_dof]`."""
        unit = torch.eye(num_dof, dtype=self.jacobian.dtype, device=self.jacobian.device)
        return self.jacobian @ unit[torch.tensor(self.table.dofs.index, device=unit.device)]

    def with_zeros_shown(self) -> Between:
        """The rows, whose zeros a trace knows; rows of a loop are in memory."""
        if is_looped(self.jacobian, len(self.table.is_own)):
            return self
        is_own = torch.tensor(self.table.is_own[:, None], device=self.jacobian.device)
        return replace(self, jacobian=torch.where(is_own, self.jacobian, 0.0))


def _motion(guard: Tensor, rows: Read, rates: Read, less: Sequence[Tensor]) -> Tensor:
    """Products of rows `[*batch, C, size, n]` and rates, less what is subtracted, `[*batch, C, size]`."""

    def of_cones(_: Tensor, J: Tensor, x: Tensor, *less: Tensor) -> tuple[Tensor]:
        moved = matvec(J, x)
        return (moved - less[0],) if less else (moved,)

    reads = [Read(guard, -1), rows, rates, *(Read(x, -2) for x in less)]
    return table_loop(of_cones, reads, [Write(-2, is_sparse=True)], guarded=True)[0]
