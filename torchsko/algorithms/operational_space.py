r"""The extended operational space compliance Omega: the inverse inertia of a system at its nodes.

.. math::
    J \mathcal{M}^{-1} J^* = B^* \Omega B, \qquad \Omega = \psi^* H^* D^{-1} H \psi

for a Jacobian J = B* A* H* with pick-off B. Omega is a backward Lyapunov product of the SPO psi, whose
weights are A (I - G H), *not* A. One sweep gives its diagonal blocks, two paths any other block.

======== ======================================== =======================
paper    meaning                                  code
======== ======================================== =======================
Omega    acceleration of node i per force on j    ``block``, ``dense``
Upsilon  its diagonal blocks                      ``compliance_kernel``
psi      SPO of the weights A (I - G H)           ``weight``
======== ======================================== =======================

Reference: A. Jain, *Graph Theoretic Foundations of Multibody Dynamics, Part II*, Multibody System
Dynamics 26(3), 2011, section 6.2, Lemma 5 and Algorithm 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor

from torchsko.algebra.operators.composition import compose
from torchsko.algebra.operators.edges import EdgeWeight
from torchsko.algebra.operators.model import SKOModel
from torchsko.algebra.operators.operators import SPO, BlockDiagonal
from torchsko.algebra.recursions.articulated import articulated_operators
from torchsko.algebra.recursions.innovations import Innovations
from torchsko.algebra.recursions.lyapunov import Levels, backward_diag_of, backward_terms
from torchsko.algebra.recursions.lyapunov_blocks import backward_block, backward_cross_block
from torchsko.algebra.topology.layout import Layout
from torchsko.algebra.topology.subgraph import node_number
from torchsko.errors import ShapeError, SingularError
from torchsko.linalg.symmetric import spd_condition, spd_solve
from torchsko.utils.concrete_values import concrete_values
from torchsko.utils.dtype import compute_dtype, is_traced_as
from torchsko.utils.shapes import are_broadcastable

Singular = Literal["nan", "raise", "pinv"] | tuple[Literal["damped"], float | Tensor]
"""What a singular sample gives; see `invert_compliance`."""


@dataclass(frozen=True, eq=False)
class ExtendedCompliance:
    """Omega, held as its diagonal blocks and the weights of psi; made by `extended_compliance`.

    Attributes:
        layout: the tree and its block sizes.
        weight: of psi, A (I - G H).
        compliance_kernel: Upsilon, one tensor `[*batch, n_l, m, m]` per level.
        joint_map: H, packed `[*batch, n, d, m]`.
        hinge_compliance: D^-1, packed `[*batch, n, d, d]`.
    """

    layout: Layout
    weight: EdgeWeight
    compliance_kernel: Levels
    joint_map: Tensor
    hinge_compliance: Tensor

    def block(self, i: int | str, j: int | str) -> Tensor:
        """Block Omega(i, j), `[*batch, m_i, m_j]`; zero for nodes on different bases.

        Args:
            i: row node, by number or name.
            j: column node.

        Raises:
            TreeError: on an unknown node.

        Reference: Jain 2011, Part II, Algorithm 4.3.
        """
        layout, psi = self.layout, self.weight
        block = backward_block(layout, psi, psi, self.compliance_kernel, i, j)
        pair = None if layout.share is None else _meeting(layout, i, j)
        if pair is None:
            return block
        (a, b), H = (layout.tree.order.index(k) for k in pair), self.joint_map
        X = H.narrow(-3, a, 1).mT @ self.hinge_compliance.narrow(-3, a, 1) @ H.narrow(-3, b, 1)
        return block + backward_cross_block(layout, psi, X, pair, i, j)

    def dense(self) -> Tensor:
        """All of Omega, `[*batch, M, M]`, M the sum of the node sizes."""
        if self.layout.share is None:
            terms = backward_terms(self.layout, self.weight, self.weight, self.compliance_kernel)
            return terms.total()
        H = BlockDiagonal(self.layout, self.joint_map, "dofs", "nodes")
        H_psi = compose(H, SPO(self.layout, self.weight))
        D_inv = BlockDiagonal(self.layout, self.hinge_compliance, "dofs", "dofs")
        return compose(H_psi.T, D_inv, H_psi).to_dense()


def extended_compliance(model: SKOModel) -> ExtendedCompliance:
    """Factor Omega = psi* H* D^-1 H psi: one Riccati sweep and one backward Lyapunov sweep, O(N).

    Args:
        model: an SKO model.

    Returns:
        Its diagonal blocks and the weights of psi. Their units are 1/kg, 1/(kg m), 1/(kg m^2).

    Reference: Jain 2011, Part II, Eq. 60 and Lemma 5.
    """
    art, H = articulated_operators(model), model.joint_map
    weight = art.art_spo.edge_weight
    D_inv = art.hinge_compliance.blocks
    kernel = backward_diag_of(model.layout, weight, H.mT @ D_inv @ H)
    return ExtendedCompliance(model.layout, weight, kernel, H, D_inv)


def _meeting(layout: Layout, i: int | str, j: int | str) -> tuple[int, int] | None:
    """Two nodes that share a hinge, one at or above i, the other at or above j; None without such."""
    tree, places = layout.tree, layout.dofs.places
    i, j = node_number(tree, i), node_number(tree, j)
    for a in (i, *tree.ancestors(i)):
        for b in (j, *tree.ancestors(j)):
            if a != b and places[a] and places[a] == places[b]:
                return a, b
    return None


def compliance_block(model: SKOModel, i: int | str, j: int | str) -> Tensor:
    """Block Omega(i, j): acceleration of node i per unit force on node j, everything else driven.

    For several blocks of one model, call `extended_compliance` once and its `block` for each.

    Args:
        model: an SKO model.
        i: row node, by number or name.
        j: column node.

    Returns:
        `[*batch, m_i, m_j]`; zero for nodes on different bases.

    Raises:
        TreeError: on an unknown node.

    Reference: Jain 2011, Part II, section 6.2 and Algorithm 4.3.
    """
    return extended_compliance(model).block(i, j)


def reflected_compliance(fac: Innovations, jacobian: Tensor) -> Tensor:
    """J M^-1 J* of any rows J, as V* V with V = D^(-1/2) [I - H psi K] J*, O(N) for each row.

    A product of that form is symmetric and positive semi-definite whatever the rounding.

    Args:
        fac: the factored mass matrix, `innovations(model)`.
        jacobian: J, `[*batch, r, num_dof]`.

    Returns:
        `[*batch, r, r]`.

    Reference: Jain 2011, Part II, Eq. 59.
    """
    V = fac.whiten(jacobian.mT, columns=True)
    return V.mT @ V


def invert_compliance(
    compliance: Tensor,
    singular: Singular = "nan",
    rank_tolerance: float | Tensor | None = None,
    *,
    sizes: Tensor | None = None,
) -> Tensor:
    """Operational space inertia Lambda = (J M^-1 J*)^-1, with a rule for singular samples.

    Args:
        compliance: J M^-1 J*, `[*batch, r, r]`, symmetric and positive semi-definite.
        singular: the result for a sample whose rank is less than r; other samples are unaffected.

            - ``"nan"``: it is nan, and passes no gradient back.
            - ``"raise"``: an error names the samples. Reads values: not for `torch.compile` or `vmap`.
            - ``"pinv"``: the pseudo-inverse of *every* sample: no inertia where motion is impossible. Which
              acceleration comes nearest to an impossible one is a matter of units, unless `sizes` are given.
            - ``("damped", d)``: (J M^-1 J* + d I)^-1 for *every* sample, d > 0 in the units of the
              compliance: a number, or one for each sample, `[*batch]`. Smooth through singularities, and
              biased everywhere.
        rank_tolerance: a sample is singular from the condition number 1 / rank_tolerance on, the product
            of the norms (Frobenius) of the compliance and its inverse; eigenvalues below this fraction of
            the largest are zero to "pinv". A number, or one for each sample, `[*batch]`;
            `rounding_of_rank` when left out.
        sizes: what rows are divided by before their rank is judged, and before "pinv" takes its inverse,
            `[*batch, r]`; ones when left out, and rows of several units are then judged by these. Of the
            verdicts "nan" and "raise" they may be `sizes_of_kinds`. The inverse of "pinv" depends on them
            where the rank is less than r: have them constant, or with their derivatives. Damping is added
            whatever they are.

    Returns:
        `[*batch, r, r]`; nan for samples that are not finite, too.

    Raises:
        SingularError: with ``"raise"``.
        ShapeError: when `singular` is unknown, or `rank_tolerance` is no number, or when damping or
            `rank_tolerance` is that of other samples, or of another type or device than the compliance.

    Reference: Jain 2011, Part II, section 6.2.
    """
    check_singular(singular, rank_tolerance)
    if isinstance(rank_tolerance, Tensor) and rank_tolerance.ndim:
        _check_samples("rank_tolerance", rank_tolerance, compliance)
    r = compliance.shape[-1]
    tolerance = (
        rounding_of_rank(r, compute_dtype(compliance)) if rank_tolerance is None else rank_tolerance
    )
    identity = torch.eye(r, dtype=compliance.dtype, device=compliance.device)
    usable = compliance.sum((-2, -1)).isfinite()
    unit = None if sizes is None else sizes[..., :, None] * sizes[..., None, :]
    if isinstance(singular, tuple):
        compliance = damped(compliance, singular[1])
    elif singular != "pinv":
        # The test has no derivative. A condition number of nan counts as singular.
        scaled = compliance if unit is None else compliance / unit
        condition = spd_condition(scaled.detach())
        usable = usable & (condition * tolerance < 1)
    if singular == "raise" and not bool(usable.all()):
        raise SingularError(
            f"the task is singular in samples {(~usable).nonzero().tolist()}.",
            "Its Jacobian has dependent rows there, so some task accelerations are impossible and no "
            "inertia belongs to them.",
            'Pass singular="pinv", ("damped", 1e-4) or "nan", or fewer rows.',
        )
    # Singular samples are replaced before the inverse: nan times zero would enter shared gradients.
    safe = torch.where(usable[..., None, None], compliance, identity)
    if singular == "pinv":
        scaled = safe if unit is None else safe / unit
        inverse = torch.linalg.pinv(scaled, hermitian=True, rtol=tolerance)
        inverse = inverse if unit is None else inverse / unit
    else:
        # Not cholesky_inverse: its forward derivative is wrong (torch 2.13).
        inverse = spd_solve(safe, identity)
    return torch.where(usable[..., None, None], inverse, torch.nan)


def damped(compliance: Tensor, damping: float | Tensor) -> Tensor:
    """A compliance and damping along its diagonal, `[*batch, r, r]`.

    Args:
        compliance: `[*batch, r, r]`.
        damping: a number, or one for each sample, `[*batch]`.

    Raises:
        ShapeError: when that is of other samples, or of another type or device.
    """
    if isinstance(damping, Tensor) and damping.ndim:
        _check_samples("damping of singular samples", damping, compliance)
        damping = damping[..., None, None]
    identity = torch.eye(compliance.shape[-1], dtype=compliance.dtype, device=compliance.device)
    return compliance + damping * identity


def _check_samples(what: str, x: Tensor, compliance: Tensor) -> None:
    """Refuse a tensor that is not one number of the compliance's type for each of its samples."""
    own, batch = x.shape, compliance.shape[:-2]
    if not are_broadcastable(own, batch):
        raise ShapeError(
            f"the {what} has shape {list(own)}, the samples {list(batch)}.",
            "It is a number, or one for each sample.",
            f"Pass a float, or a tensor of shape {list(batch)}.",
        )
    other = x.dtype != compliance.dtype and not is_traced_as(x, compliance.dtype)
    if other or x.device != compliance.device:
        raise ShapeError(
            f"the {what} is {x.dtype} on {x.device}, the compliance {compliance.dtype} on "
            f"{compliance.device}.",
            "Nothing is cast or copied in silence.",
            f"Pass x.to({str(compliance.device)!r}, {compliance.dtype}) for this x.",
        )


def sizes_of_kinds(compliance: Tensor, length: Tensor) -> Tensor:
    """Scales of the angular and of the linear rows of frames, which make the rank independent of units.

    Rows are not scaled one by one: a row that is zero up to rounding would become as large as the others and
    count as a direction of motion. Where all linear rows vanish up to rounding, as at a
    point in which all axes intersect, their scale is the angular one times the length.

    Args:
        compliance: J M^-1 J* of frames, [angular; linear] one after another, `[*batch, 6 F, 6 F]`.
        length: characteristic length of the robot, `[*batch]` [m].

    Returns:
        Roots of the sums of the diagonal over either kind, `[*batch, 6 F]`; 1 where that is zero.
    """
    diagonal = compliance.diagonal(dim1=-2, dim2=-1).unflatten(-1, (-1, 2, 3))
    square = diagonal.sum((-3, -1))
    root = torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)
    angular, linear = root.unbind(-1)
    turned = length * angular
    rounding = rounding_of_rank(compliance.shape[-1], compute_dtype(compliance))
    linear = torch.where(linear > rounding * turned, linear, turned)
    size = torch.stack(torch.broadcast_tensors(angular, linear), -1)
    size = torch.where(size > 0, size, 1.0)[..., None, :, None]
    return size.expand(*size.shape[:-3], diagonal.shape[-3], 2, 3).flatten(-3)


def check_singular(singular: Any, rank_tolerance: Any = None) -> None:
    """Refuse an unknown rule for singular samples, or an invalid rank tolerance.

    Args:
        singular: see `invert_compliance`. Damping may be a tensor; its values are checked unless it is
            traced.
        rank_tolerance: see `invert_compliance`; a number or a tensor.

    Raises:
        ShapeError: names the valid values.
    """
    if isinstance(singular, tuple):
        known = len(singular) == 2 and singular[0] == "damped" and _is_size(singular[1])
    else:
        known = isinstance(singular, str) and singular in ("nan", "raise", "pinv")
    if not known:
        raise ShapeError(
            f"singular={singular!r} is no rule for singular samples.",
            "The inertia of a singular sample is a choice of the caller; damping is positive.",
            'Pass "nan", "raise", "pinv" or ("damped", 1e-4), say.',
        )
    if rank_tolerance is not None and not _is_size(rank_tolerance, zero=True):
        raise ShapeError(
            f"rank_tolerance is {rank_tolerance!r}.",
            "It is the fraction of the largest eigenvalue below which one is zero.",
            "Leave it out, or pass a number, 0 or more, say 1e-9.",
        )


def _is_size(x: Any, *, zero: bool = False) -> bool:
    """True if a number, or every readable value of a tensor, is positive, or zero where that is allowed."""
    if isinstance(x, Tensor):
        x = concrete_values(x)
        return x is None or bool((x >= 0 if zero else x > 0).all())
    size = float(x) if isinstance(x, Real) and not isinstance(x, bool) else -1.0
    return size >= 0 if zero else size > 0


def rounding_of_rank(rows: int, dtype: torch.dtype) -> float:
    """Rounding error of a zero eigenvalue as a fraction of the largest one: 4 r eps."""
    return 4 * rows * torch.finfo(dtype).eps
