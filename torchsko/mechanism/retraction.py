r"""Configurations on the manifold of closed loops, with derivatives along it.

With phi the residuals of all loops and G_d their Jacobian for the dependent dofs, the step s of the dependent
dofs that closes the loops solves

.. math:: G_d^*\, \phi(q \oplus s) = 0, \qquad \partial s = -G_d^+ \partial \phi .

Newton's iteration with bounded steps finds it, and the result is nan where it does not converge. Derivatives
of every order follow from the implicit function theorem, and none goes through the iterations. On a closed
configuration s is zero, and q + s has the derivatives of q along the manifold: those to dependent coordinates
vanish, those to independent ones are total.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]

from torchsko.implicit.equation import implicit
from torchsko.implicit.loop import iterate, subprogram
from torchsko.linalg.symmetric import spd_solve
from torchsko.mechanism.data import MechanismData, uncoupled
from torchsko.mechanism.fields import PARAMETERS
from torchsko.mechanism.loops.embedded_loops import EmbeddedLoops, add_tree_step
from torchsko.utils.dtype import compute_dtype
from torchsko.utils.shapes import broadcast_shapes, concatenate, matvec

NEWTON_STEPS = 40
"""Largest number of Newton steps of a retraction; each squares the error near the manifold."""

COMPILED_STEPS = 12
"""Newton steps of a retraction under torch.compile, which takes all of them."""

MAX_STEP = 0.5
"""Largest change of a dependent dof in one step [rad or m]."""

LAST_STEP = 0.75
"""Power of the unit of rounding below which the iteration ends after a step: 2e-12 in float64 [rad or m]."""

MAX_LAST_STEP = 0.45
"""Power of the unit of rounding above which the last step means no convergence: 9e-8 in float64."""

ATTACHED_STEPS = 2
"""Newton steps that torch.compile differentiates: derivatives are exact up to the third order."""


def split_parameters(mech: MechanismData) -> tuple[dict[str, Any], list[Tensor]]:
    """Fields of a mechanism that are not parameters, and the parameters."""
    fixed = {f.name: getattr(mech, f.name) for f in fields(mech) if f.name not in PARAMETERS}
    return fixed, [getattr(mech, name) for name in PARAMETERS]


def mechanism_of(
    fixed: dict[str, Any], inputs: tuple[Tensor, ...]
) -> tuple[MechanismData, MechanismData, EmbeddedLoops, Tensor]:
    """A mechanism, its tree, its loops and a configuration of the tree from the inputs (*parameters, q)."""
    named: dict[str, Any] = dict(zip(PARAMETERS, inputs, strict=False))
    mech = MechanismData(**fixed, **named)
    assert mech.closing is not None
    return mech, uncoupled(mech), mech.closing, inputs[-1]


@dataclass(frozen=True, eq=False)
class LoopEquation:
    """The equation for s; inputs are (*parameters, q), q a configuration of the tree.

    Attributes:
        fixed: the fields of the mechanism that are not parameters.
        moves: whether the loops are open at q; otherwise the solution is zero.
    """

    fixed: dict[str, Any]
    moves: bool

    def solution(self, *inputs: Tensor) -> Tensor:
        """The step of the dependent dofs."""
        mech, tree, closing, q = mechanism_of(self.fixed, inputs)
        batch = broadcast_shapes(q.shape[:-1], mech.batch_shape)
        start = q.new_zeros(*batch, closing.dependent.shape[0])
        rounding = torch.finfo(compute_dtype(q)).eps

        def step(s: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            moved = add_tree_step(tree.joints, q, closing.spread_dependent(mech, s))
            change = closing.dependent_step(mech, tree, moved)
            size = change.abs().amax(-1)
            return s + change * (MAX_STEP / size.clamp_min(MAX_STEP))[..., None], size

        size = torch.full_like(start[..., 0], torch.inf)
        if torch.compiler.is_compiling() or is_tracing():
            for _ in range(ATTACHED_STEPS + self.moves * COMPILED_STEPS):
                start, size = step(start, size)
            return start
        if not self.moves:
            return start
        least, largest = rounding**LAST_STEP, rounding**MAX_LAST_STEP
        found, size = iterate(step, (start, size), NEWTON_STEPS, until=lambda _, size: size < least)
        return torch.where((size < largest)[..., None], found, torch.nan)

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Residuals of the loops, times G_d*."""
        mech, tree, closing, q = mechanism_of(self.fixed, inputs)
        moved = add_tree_step(tree.joints, q, closing.spread_dependent(mech, x))
        parts = []
        for node in closing.nodes:
            rows = node.rows(mech, tree, moved, None)
            G_d = rows.jacobian.index_select(-1, node.dependent)
            parts.append(matvec(G_d.mT, rows.residual))
        return concatenate(parts, -1)

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """(G_d* G_d)^-1 rhs, node by node."""
        mech, tree, closing, q = mechanism_of(self.fixed, inputs)
        moved = add_tree_step(tree.joints, q, closing.spread_dependent(mech, x))
        sizes = [node.dependent.shape[0] for node in closing.nodes]
        parts = []
        for node, part in zip(closing.nodes, rhs.split(sizes, -1), strict=True):
            G_d = node.rows(mech, tree, moved, None).jacobian.index_select(-1, node.dependent)
            parts.append(spd_solve(G_d.mT @ G_d, part[..., None])[..., 0])
        return concatenate(parts, -1)


def close_dependent(mech: MechanismData, q: Tensor, *, moves: bool) -> Tensor:
    """A configuration of the tree whose dependent dofs close the loops.

    Args:
        mech: a mechanism with loops.
        q: configuration of the tree, `[*batch, num_tree_q]`.
        moves: False if the loops are closed at q. Then the value is q, and derivatives are along the
            manifold.
    """
    closing = mech.closing
    assert closing is not None

    def close(q: Tensor) -> tuple[Tensor]:
        fixed, parameters = split_parameters(mech)
        s = implicit(LoopEquation(fixed, moves), *parameters, q)
        return (add_tree_step(mech.joints, q, closing.spread_dependent(mech, s)),)

    is_shared = moves and closing.is_shared
    return (subprogram(close, (q,), 1) if is_shared else close(q))[0]
