r"""Physically consistent least squares: convex, solved by Newton's method inside of the physical cone.

.. math::
    \min_\phi \; \beta^T A \beta - 2 c^T \beta + \lambda \sum_k D(J_k(\phi) \| J_{k,0}), \qquad
    \beta = K \phi, \qquad D(X \| Y) = \mathrm{tr}(X Y^{-1}) - \log\det(X Y^{-1}) - 4

with the 4 x 4 pseudo-inertias J, linear in the ten numbers phi, and base parameters beta, all that forces
tell. What K takes to zero the divergence alone decides: the slope of the squares has no part there, not even
of its rounding, which a small weight would magnify. D is infinite where J is not positive
definite, so a step that lowers the objective stays physical: a step too long is halved. The objective is
self-concordant: from any physical start Newton's method ends at the one minimum. A parametrization
(`InertiaLogCholesky`) would bend this, and its steps would stall where the cone's wall is near.

There Newton's method itself creeps, a thousand steps and more, when forces ask for inertias far from nominal
ones. So the logarithm is a barrier of its own at first: beside the trace, whose weight is lambda already, its
weight falls from a large one to lambda, and every step has room.

Reference: T. Lee, P. Wensing, F. Park, *Geometric robot dynamic identification: a convex programming
approach*, IEEE Transactions on Robotics 36(2), 2020; S. Boyd, L. Vandenberghe, *Convex optimization*, 9.6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.learn.threads import solve_each
from torchsko.shapes import matvec

UNITS = ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2))
"""Places of the last six of the ten numbers in the rotational inertia."""

WALL = 0.6
"""Part of the way to the cone's wall that a step goes at most: from next to it steps only double."""

NEWTON = 200
"""Steps after which Newton's method is given up; for each weight of the barrier it needs about ten."""

PATIENCE = 30
"""Steps from a given start after which the way begins at the nominal robot instead."""

SLACK = 1e-6
"""The trace's weight over the barrier's is no less: inertias would grow beyond all numbers."""


def pseudo_units(like: Tensor) -> Tensor:
    """The pseudo-inertia of each of the ten numbers of `inertial_vector`, `[10, 4, 4]`.

    J = [[tr(I) / 2 - I, h], [h*, m]], I the inertia about the origin.
    """
    E = like.new_zeros(10, 4, 4)
    E[0, 3, 3] = 1
    for axis in range(3):
        E[1 + axis, axis, 3] = E[1 + axis, 3, axis] = 1
    for k, (i, j) in enumerate(UNITS):
        if i == j:
            E[4 + k, :3, :3] = torch.eye(3).to(like) / 2
            E[4 + k, i, i] -= 1
        else:
            E[4 + k, i, j] = E[4 + k, j, i] = -1
    return E


@dataclass(frozen=True, eq=False)
class Prior:
    """How far from a nominal robot, and its derivatives, in the ten numbers of each body; and what is told.

    Numbers have any leading dimensions, those of several problems.

    Attributes:
        nominal: `[bodies, 10]`.
        told: takes numbers to base parameters, `[base, bodies * 10]`.
        inverse: of the nominal pseudo-inertias, `[bodies, 4, 4]`.
        known: logarithm of the determinant of all of `inverse`.
        units: `[10, 4, 4]`.
    """

    nominal: Tensor
    told: Tensor
    inverse: Tensor
    known: Tensor
    units: Tensor

    @classmethod
    def at(cls, nominal: Tensor, told: Tensor) -> Prior:
        """Of nominal numbers `[bodies, 10]`, all physical, and what takes them to base parameters."""
        units = pseudo_units(nominal)
        J = (nominal @ units.flatten(1)).unflatten(-1, (4, 4))
        inverse = torch.linalg.inv(J)
        return cls(nominal, told, inverse, torch.linalg.slogdet(inverse)[1].sum(), units)

    def pseudo(self, phi: Tensor) -> Tensor:
        """Pseudo-inertias `[*batch, bodies, 4, 4]` of numbers `[*batch, bodies * 10]`."""
        return (phi.unflatten(-1, (-1, 10)) @ self.units.flatten(1)).unflatten(-1, (4, 4))

    def value(self, phi: Tensor, barrier: float = 1.0) -> Tensor:
        """The sum of divergences `[*batch]`, inf outside of the cone; their logarithms times `barrier`."""
        J = self.pseudo(phi)
        L, info = torch.linalg.cholesky_ex(J)
        logdet = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum((-2, -1))
        trace = (self.inverse * J).sum((-3, -2, -1)) - 4 * J.shape[-3]
        apart = trace - barrier * (logdet + self.known)
        inside = (info == 0).all(-1) & apart.isfinite()
        return torch.where(inside, apart, torch.inf)

    def room(self, phi: Tensor, move: Tensor) -> Tensor:
        """How far one can go against directions before the cone ends, `[*batch]`.

        Raises:
            FitError: when the numbers are not in the cone, or the directions no numbers.
        """
        L, info = torch.linalg.cholesky_ex(self.pseudo(phi))
        if bool(info.any()) or not bool(move.isfinite().all()):
            raise _too_far_apart("inertias of the fit are physical no longer, to rounding.")
        half = torch.linalg.solve_triangular(L, self.pseudo(move), upper=False)
        both = torch.linalg.solve_triangular(L, half.mT, upper=False)
        most = torch.linalg.eigvalsh((both + both.mT) / 2).flatten(-2).amax(-1)
        return torch.where(most > 0, 1 / most, torch.inf)

    def derivatives(self, phi: Tensor, barrier: float = 1.0) -> tuple[Tensor, Tensor]:
        """Gradient `[*batch, n]` of `value`, Hessian `[*batch, n, n]`, positive definite; n = 10 bodies."""
        inverse, units = torch.linalg.inv(self.pseudo(phi)), self.units.flatten(1)
        slope = (self.inverse - barrier * inverse).flatten(-2) @ units.mT
        each = inverse[..., None, :, :] @ self.units
        blocks = barrier * each.flatten(-2) @ each.mT.flatten(-2).mT
        apart = torch.eye(len(self.nominal)).to(phi)[:, None, :, None]
        return slope.flatten(-2), (blocks[..., None, :] * apart).flatten(-2).flatten(-3, -2)


def entropic_least_squares(
    A: Tensor, c: Tensor, prior: Prior, weight: float, start: Tensor | None = None
) -> tuple[Tensor, int]:
    """The numbers that are the minimum above, of several problems side by side.

    Args:
        A: positive semidefinite, `[*batch, base, base]`.
        c: `[*batch, base]`.
        prior: the nominal robot, and what takes its numbers to base parameters.
        weight: lambda, positive.
        start: physical numbers to begin at, `[*batch, n]` with n = 10 bodies; the nominal ones when left out.

    Returns:
        phi, `[*batch, n]`, and how many steps the slowest problem took.

    Raises:
        FitError: on a weight that is not positive, or no progress.
    """
    if not weight > 0:
        raise FitError(
            f"the weight of the prior is {weight:g}.\n"
            "It keeps inertias physical, and bounds what the data do not tell.\n"
            "Pass a small positive number, prior=1e-6 say."
        )
    steps = 0
    if start is not None:
        phi, steps, ended = _newton(A, c, prior, weight, weight, start, PATIENCE)
        if ended:
            return phi, steps
    phi, barrier, last = prior.nominal.flatten().expand(*c.shape[:-1], -1), _explained(A, c), False
    while not last:
        last = barrier <= 3 * weight
        barrier = weight if last else barrier
        phi, taken, ended = _newton(
            A, c, prior, max(weight, SLACK * barrier), barrier, phi, NEWTON, loose=not last
        )
        steps, barrier = steps + taken, barrier / 10
        if not ended:
            raise _too_far_apart(f"Newton's method has not ended after {NEWTON} steps.")
    return phi, steps


def _newton(
    A: Tensor, c: Tensor, prior: Prior, weight: float, barrier: float, phi: Tensor, most: int,
    *, loose: bool = False,
) -> tuple[Tensor, int, bool]:  # fmt: skip
    """Newton's method with steps that stay in the cone.

    Args:
        A: of the squares.
        c: of the squares.
        prior: the nominal robot.
        weight: of its divergence, but its logarithm.
        barrier: weight of that.
        phi: where to begin.
        most: steps, at most.
        loose: only to where the next barrier begins.

    Returns:
        Where it is, how many steps that took, and whether it is the minimum.
    """
    told, share = prior.told, barrier / weight
    enough = barrier / 10 if loose else 1e-11 * barrier
    squares = told.mT @ A @ told
    done = torch.zeros(c.shape[:-1], dtype=torch.bool)
    last = c.new_full(c.shape[:-1], torch.inf)
    for step in range(most):
        slope, curvature = prior.derivatives(phi, share)
        beta, before = phi @ told.mT, prior.value(phi, share)
        forces = matvec(A, beta)
        steep = 2 * (forces - c) @ told
        g = steep + weight * slope
        H = 2 * squares + weight * curvature
        scale = H.diagonal(dim1=-2, dim2=-1).rsqrt()
        unit = scale[..., :, None] * H * scale[..., None, :]
        move = scale * _solution(unit, scale * g)
        decrement = (g * move).sum(-1)
        # So near it falls by its square, or is rounding.
        rounding = (decrement <= barrier / 100) & (decrement > last / 4)
        # Differences of the prior drown in rounding; so near, a whole step is right, unless rounding alone
        # takes it out of the cone: then there is nothing to gain.
        near, last = ~done & (rounding | (decrement <= enough)), decrement
        if bool(near.any()):
            whole = near & prior.value(phi - move, share).isfinite()
            phi, done = torch.where(whole[..., None], phi - move, phi), done | near
        if bool(done.all()):
            return phi, step + 1, True
        size = (WALL * prior.room(phi, move)).clamp_max(1.0)
        # How squares change, not what they are: of forces without noise that is below their rounding.
        first, second = (steep * move).sum(-1), (move * matvec(squares, move)).sum(-1)
        while True:
            after = prior.value(phi - size[..., None] * move, share)
            change = size * (size * second - first) + weight * (after - before)
            high = ~done & ~(change <= -0.1 * size * decrement)
            if not bool(high.any()):
                break
            size = torch.where(high, size / 2, size)
            done = done | (high & (size < 1e-12))  # what is left to gain is below rounding
        phi = torch.where(done[..., None], phi, phi - size[..., None] * move)
    return phi, most, False


def _explained(A: Tensor, c: Tensor) -> float:
    """By how much one parameter alone lowers the squares, at most: what a barrier is large beside."""
    size = A.diagonal(dim1=-2, dim2=-1)
    return float(torch.where(size > 0, c * c / size, 0.0).amax())


def _solution(A: Tensor, b: Tensor) -> Tensor:
    """Of equations that are positive definite, if numbers are not too far apart."""
    try:
        return solve_each(A, b)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # public by its documentation
        raise _too_far_apart("the curvature of the fit is singular, to rounding.") from None


def _too_far_apart(what: str) -> FitError:
    return FitError(
        f"{what}\nForces or inertias are too far apart in size.\n"
        "Check the units of the log, or pass a larger prior."
    )
