r"""The closed configuration nearest to one whose loops are open, with its derivatives.

With the step s of all open dofs from q, the nearest closed configuration minimizes |s|^2 on the
closed manifold. Let g be the gradient of |s|^2 / 2 to rates of the dofs, and X the rates of all dofs per
independent rate. Then

.. math:: X^* g = 0, \qquad G_d^* \phi(q \oplus s) = 0 .

Steps along the negative tangential part of g, and of least norm to the closed manifold, lead near the
solution; steps of Newton's method end there. Derivatives of every order follow from the implicit function
theorem for both equations.

======== ================================================== ======================
symbol   meaning                                            code
======== ================================================== ======================
s        step of all open dofs                              ``step``
g        gradient of |s|^2 / 2 to rates at q + s            ``gradient``
X        rates of open dofs per independent rate            ``EmbeddedLoops.open_matrix``
======== ================================================== ======================

Reference: Nocedal, Wright 2006, Numerical Optimization, sections 12.3 and 18.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchsko.implicit.equation import implicit
from torchsko.implicit.jacobian_products import jvp_by_double_vjp
from torchsko.mechanism.closed_chains.closed_states import (
    closed_residual,
    coupled_configuration,
    nearest_closed,
)
from torchsko.mechanism.configuration import subtract
from torchsko.mechanism.coordinates import independent_q
from torchsko.mechanism.data import MechanismData, uncoupled
from torchsko.mechanism.loops.embedded_loops import EmbeddedLoops, add_tree_step, coupled_step
from torchsko.mechanism.retraction import mechanism_of, split_parameters
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.shapes import broadcast_shapes, concatenate, gather_entries, matvec

DESCENT_STEPS = 20
"""Steps along the tangential part of the gradient."""

DESCENT_RATE = 0.5
"""Ratio of such a step to the tangential part of the gradient; below 1 where the manifold is curved."""

NEWTON_STEPS = 20
"""Largest number of steps of Newton's method."""

MAX_STEP = 0.5
"""Largest change of a dof in one step along the gradient [rad or m]."""

CLOSING_STEPS = 6
"""Steps to the closed manifold of samples for which Newton's method does not converge."""

OPENING = 2.0
"""Largest ratio of the residual to that of the first configuration, for loops that do not close exactly."""

CONVERGED = 64.0
"""Error of the step in units of rounding at which Newton's method ends [rad or m]."""


class Closed(NamedTuple):
    """A configuration that closes all loops.

    Attributes:
        q: configuration, `[*batch, num_q]`.
        distance: largest residual of a loop before, `[*batch]` [m, or 1 for directions].
    """

    q: Tensor
    distance: Tensor


class _Point(NamedTuple):
    """One mechanism and its structure, the configuration q and the one moved by a step."""

    mech: MechanismData
    tree: MechanismData
    closing: EmbeddedLoops
    q: Tensor
    moved: Tensor


@dataclass(frozen=True, eq=False)
class NearestEquation:
    """The equations for s; inputs are (*parameters, q), q a configuration of the tree.

    Attributes:
        fixed: the fields of the mechanism that are not parameters.
    """

    fixed: dict[str, Any]

    def _at(self, step: Tensor | None, inputs: tuple[Tensor, ...]) -> _Point:
        mech, tree, closing, q = mechanism_of(self.fixed, inputs)
        moved = q if step is None else add_tree_step(tree.joints, q, coupled_step(mech, step))
        return _Point(mech, tree, closing, q, moved)

    def solution(self, *inputs: Tensor) -> Tensor:
        """The step to a closed configuration, and from there to the nearest one.

        Samples that end farther open keep the first closed configuration.
        """
        at = self._at(None, inputs)
        batch = broadcast_shapes(at.q.shape[:-1], at.mech.batch_shape)
        with torch.no_grad():
            q = at.q.expand(*batch, -1)
            nodes = at.closing.nodes
            found, left = nearest_closed(replace(at.mech, closing=None), at.tree, nodes, q)
            step = first = _open_difference(at, found)
            for _ in range(DESCENT_STEPS):
                along, across = self._errors(step, inputs)
                change = across - DESCENT_RATE * along
                size = change.abs().amax(-1, keepdim=True)
                step = step + change * (MAX_STEP / size.clamp_min(MAX_STEP))
            step = self._newton(step, inputs)
            end = self._at(step, inputs)
            residual = at.closing.residual(end.mech, end.tree, end.moved).abs().amax(-1)
            is_closed = residual < OPENING * left + closed_residual(q)
            return torch.where(is_closed[..., None], step, first)

    def _newton(self, step: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """Newton's method; samples whose error grows take shorter steps."""
        least = CONVERGED * torch.finfo(step.dtype).eps
        size = self._error(step, inputs)
        ratio = torch.ones_like(size)
        for _ in range(NEWTON_STEPS):
            largest = concrete_values(size.amax()) if size.numel() else 0.0
            if largest is not None and largest < least:
                break
            rhs = self.residual(step, *inputs)
            change = self.solve(rhs, step, *inputs, transposed=False)
            tried = step - ratio[..., None] * change
            new = self._error(tried, inputs)
            is_better = new < size
            step = torch.where(is_better[..., None], tried, step)
            size = torch.where(is_better, new, size)
            ratio = torch.where(is_better, (2 * ratio).clamp_max(1.0), ratio / 4)
        else:  # closed at least
            for _ in range(CLOSING_STEPS):
                step = step + self._errors(step, inputs)[1]
        return step

    def _errors(self, step: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """The tangential part of the gradient, and the step of least norm to the closed manifold."""
        at = self._at(step, inputs)
        X = at.closing.open_matrix(at.mech, at.tree, at.moved)
        basis = torch.linalg.qr(X).Q
        project = lambda x: matvec(basis, matvec(basis.mT, x))  # noqa: E731
        across = at.closing.open_step(at.closing.dependent_step(at.mech, at.tree, at.moved))
        return project(_gradient(at, step)), across - project(across)

    def _error(self, step: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        along, across = self._errors(step, inputs)
        return torch.maximum(along.abs().amax(-1), across.abs().amax(-1))

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """X* g, then the residuals of the loops times G_d*."""
        at = self._at(x, inputs)
        g = _gradient(at, x)
        residuals = []
        for node in at.closing.nodes:
            rows = node.rows(at.mech, at.tree, at.moved, None)
            G_d = rows.jacobian.index_select(-1, node.dependent)
            residuals.append(matvec(G_d.mT, rows.residual))
        X = at.closing.open_matrix(at.mech, at.tree, at.moved)
        return concatenate([matvec(X.mT, g), *residuals], -1)

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """The Jacobian of the residual, or its transpose, solved."""
        n = x.shape[-1]
        unit = torch.eye(n, dtype=x.dtype, device=x.device)
        unit = unit.reshape(n, *(1,) * (x.ndim - 1), n).expand(n, *x.shape)
        wide = lambda x: (self.residual(x, *inputs),)  # noqa: E731
        (columns,) = jvp_by_double_vjp(wide, (x.expand(n, *x.shape),), (unit,))
        A = columns.movedim(0, -1)
        return torch.linalg.solve_ex(A.mT if transposed else A, rhs[..., None]).result[..., 0]


def _gradient(at: _Point, step: Tensor) -> Tensor:
    """Gradient of |s|^2 / 2 to rates of open dofs at the moved configuration, `[*batch, open]`."""
    if all(group.kind.vector for group in at.tree.joints.groups):
        return step

    def moved_step(change: Tensor) -> Tensor:
        moved = add_tree_step(at.tree.joints, at.moved, coupled_step(at.mech, change))
        return _open_difference(at, moved)

    return torch.func.vjp(moved_step, torch.zeros_like(step))[1](step)[0]


def _open_difference(at: _Point, end: Tensor) -> Tensor:
    """Step of open dofs from q to another configuration of the tree."""
    step = subtract(at.tree, at.q, end)
    if at.mech.coupling is None:
        return step
    return gather_entries(step, at.mech.coupling.independent_dof_index)


def nearest_configuration(mech: MechanismData, q: Tensor) -> Tensor:
    """The closed configuration nearest to q, both configurations of the tree, `[*batch, num_tree_q]`."""
    fixed, parameters = split_parameters(mech)
    step = implicit(NearestEquation(fixed), *parameters, q)
    return add_tree_step(mech.joints, q, coupled_step(mech, step))


def closed_configuration(mech: MechanismData, q: Tensor) -> Closed:
    """The nearest closed configuration, and the distance of q from closed loops."""
    closing = mech.closing
    if closing is None:
        return Closed(q, q.new_zeros(q.shape[:-1]))
    start = coupled_configuration(mech, q)
    distance = closing.residual(mech, uncoupled(mech), start).abs().amax(-1)
    return Closed(independent_q(mech, nearest_configuration(mech, start)), distance)
