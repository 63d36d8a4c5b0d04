r"""Physically consistent least squares: convex, solved by Newton's method inside of the physical cone.

.. math::
    \min_\phi \; \beta^T A \beta - 2 c^T \beta + \lambda \sum_k D(J_k(\phi) \| J_{k,0}), \qquad
    \beta = K \phi, \qquad D(X \| Y) = \mathrm{tr}(X Y^{-1}) - \log\det(X Y^{-1}) - 4

with the 4 x 4 pseudo-inertias J, linear in the ten numbers phi, and base parameters beta, all that forces
tell. D is infinite where J is not positive definite, so a step that lowers the objective stays physical: a
step too long is halved. The objective is self-concordant: from any physical start Newton's method ends at the
one minimum. A parametrization (`InertiaLogCholesky`) would bend this, and its steps would stall where the
cone's wall is near.

There Newton's method itself creeps, a thousand steps and more, when forces ask for inertias far from nominal
ones. So the logarithm is a barrier of its own at first: beside the trace, whose weight is lambda already, its
weight falls from a large one to lambda, and every step has room.

A step is sought in symmetric matrices S, in which J = L L* goes to L (I - S) L*: there the logarithm's
curvature is the identity however near the wall is, and no inverse of J is needed. What K takes to zero the
divergence alone decides. Squares have no part there, neither their slope nor their curvature: not even of
their rounding, which a small weight would magnify until inertias are anything.

Reference: T. Lee, P. Wensing, F. Park, *Geometric robot dynamic identification: a convex programming
approach*, IEEE Transactions on Robotics 36(2), 2020; S. Boyd, L. Vandenberghe, *Convex optimization*, 9.6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.workers import solve_each
from torchsko.utils.shapes import matvec

INERTIA_ENTRIES = ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2))
"""Places of the last six of the ten numbers in the rotational inertia."""

MAX_STEP_TO_BOUNDARY = 0.6
"""Part of the way to the cone's wall that a step goes at most: from next to it steps only double."""

MAX_NEWTON_STEPS = 200
"""Steps after which Newton's method is given up; for each weight of the barrier it needs about ten."""

MAX_WARM_START_STEPS = 30
"""Steps from a given start after which the way begins at the nominal robot instead."""

MIN_TRACE_RATIO = 1e-6
"""The trace's weight over the barrier's is no less: inertias would grow beyond all numbers."""


def pseudo_inertia_basis(like: Tensor) -> Tensor:
    """The pseudo-inertia of each of the ten numbers of `inertial_vector`, `[10, 4, 4]`.

    J = [[tr(I) / 2 - I, h], [h*, m]], I the inertia about the origin.
    """
    E = like.new_zeros(10, 4, 4)
    E[0, 3, 3] = 1
    for axis in range(3):
        E[1 + axis, axis, 3] = E[1 + axis, 3, axis] = 1
    for k, (i, j) in enumerate(INERTIA_ENTRIES):
        if i == j:
            E[4 + k, :3, :3] = torch.eye(3).to(like) / 2
            E[4 + k, i, i] -= 1
        else:
            E[4 + k, i, j] = E[4 + k, j, i] = -1
    return E


def to_inertial_parameters(J: Tensor) -> Tensor:
    """Inertial parameters `[..., 10]` of pseudo-inertias `[..., 4, 4]`; inverse of `pseudo_inertia_basis`."""
    about = J[..., :3, :3]
    inertia = about.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] * torch.eye(3).to(J) - about
    return torch.cat(
        [J[..., 3, 3:], J[..., :3, 3], inertia[..., *zip(*INERTIA_ENTRIES, strict=True)]], -1
    )


def parameters_of_factors(L: Tensor) -> Tensor:
    """The ten numbers of each pseudo-inertia L L*, `[*batch, bodies, 4, 4]` to `[*batch, bodies * 10]`."""
    return to_inertial_parameters(L @ L.mT).flatten(-2)


def symmetric_basis(like: Tensor) -> Tensor:
    """Symmetric matrices that others are sums of, each of length 1 and at right angles, `[10, 4, 4]`."""
    i, j = torch.triu_indices(4, 4)
    E = like.new_zeros(10, 4, 4)
    E[torch.arange(10), i, j] = E[torch.arange(10), j, i] = torch.where(i == j, 1.0, 0.5**0.5).to(
        like
    )
    return E


@dataclass(frozen=True, eq=False)
class EntropicPrior:
    """How far from a nominal robot, and its derivatives, in the ten numbers of each body; and what is told.

    Numbers have any leading dimensions, those of several problems.

    Attributes:
        nominal: `[bodies, 10]`.
        told: takes numbers to base parameters, `[base, bodies * 10]`.
        inverse: of the nominal pseudo-inertias, `[bodies, 4, 4]`.
        known: logarithm of the determinant of all of `inverse`.
        units: `pseudo_inertia_basis`.
        matrices: `symmetric_basis`.
    """

    nominal: Tensor
    base_map: Tensor
    inverse_inertia: Tensor
    logdet_inverse: Tensor
    basis: Tensor
    step_basis: Tensor

    @classmethod
    def at(cls, nominal: Tensor, told: Tensor) -> EntropicPrior:
        """Of nominal numbers `[bodies, 10]`, all physical, and what takes them to base parameters."""
        units = pseudo_inertia_basis(nominal)
        J = (nominal @ units.flatten(1)).unflatten(-1, (4, 4))
        inverse = torch.linalg.inv(J)
        known = torch.linalg.slogdet(inverse)[1].sum()
        return cls(nominal, told, inverse, known, units, symmetric_basis(nominal))

    def pseudo(self, phi: Tensor) -> Tensor:
        """Pseudo-inertias `[*batch, bodies, 4, 4]` of numbers `[*batch, bodies * 10]`."""
        return (phi.unflatten(-1, (-1, 10)) @ self.basis.flatten(1)).unflatten(-1, (4, 4))

    def factors(self, phi: Tensor) -> Tensor:
        """Lower triangular L of pseudo-inertias L L* of numbers, `[*batch, bodies, 4, 4]`.

        Raises:
            FitError: when the numbers are not in the cone.
        """
        L, info = torch.linalg.cholesky_ex(self.pseudo(phi))
        if bool(info.any()):
            raise _too_far_apart("inertias of the fit are physical no longer, to rounding.")
        return L

    def physical(self, L: Tensor) -> Tensor:
        """The numbers of factors, `[*batch, n]`.

        Raises:
            FitError: when the wall is nearer than numbers are told apart.
        """
        phi = parameters_of_factors(L)
        self.factors(phi)
        return phi

    def value(self, phi: Tensor) -> Tensor:
        """The sum of divergences `[*batch]`, inf outside of the cone."""
        J = self.pseudo(phi)
        L, info = torch.linalg.cholesky_ex(J)
        logdet = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum((-2, -1))
        trace = (self.inverse_inertia * J).sum((-3, -2, -1)) - 4 * J.shape[-3]
        apart = trace - logdet - self.logdet_inverse
        inside = (info == 0).all(-1) & apart.isfinite()
        return torch.where(inside, apart, torch.inf)

    def derivatives(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient `[*batch, n]` of `value`, Hessian `[*batch, n, n]`, positive definite; n = 10 bodies."""
        inverse, units = torch.linalg.inv(self.pseudo(phi)), self.basis.flatten(1)
        slope = (self.inverse_inertia - inverse).flatten(-2) @ units.mT
        each = inverse[..., None, :, :] @ self.basis
        blocks = each.flatten(-2) @ each.mT.flatten(-2).mT
        apart = torch.eye(len(self.nominal)).to(phi)[:, None, :, None]
        return slope.flatten(-2), (blocks[..., None, :] * apart).flatten(-2).flatten(-3, -2)


def entropic_least_squares(
    A: Tensor, c: Tensor, prior: EntropicPrior, weight: float, start: Tensor | None = None
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
            f"the weight of the prior is {weight:g}.",
            "It keeps inertias physical, and bounds what the data do not tell.",
            "Pass a small positive number, prior=1e-6 say.",
        )
    steps = 0
    if start is not None:
        L, steps, ended = _newton(
            A, c, prior, weight, weight, prior.factors(start), MAX_WARM_START_STEPS
        )
        if ended:
            return prior.physical(L), steps
    L = prior.factors(prior.nominal.flatten().expand(*c.shape[:-1], -1))
    barrier, last = _explained(A, c), False
    while not last:
        last = barrier <= 3 * weight
        barrier = weight if last else barrier
        L, taken, ended = _newton(
            A,
            c,
            prior,
            max(weight, MIN_TRACE_RATIO * barrier),
            barrier,
            L,
            MAX_NEWTON_STEPS,
            loose=not last,
        )
        steps, barrier = steps + taken, barrier / 10
        if not ended:
            raise _too_far_apart(f"Newton's method has not ended after {taken} steps.")
    return prior.physical(L), steps


@dataclass(frozen=True, eq=False)
class _Step:
    """Newton's step in symmetric matrices S of bodies: from L L* to L (I - S) L*.

    Attributes:
        S: `[*batch, bodies, 4, 4]`.
        decrement: what it lowers the objective by, twice, were that a parabola, `[*batch]`.
        squares: what they grow by, beside their slope, `[*batch]`.
        reach: eigenvalues of S, `[*batch, 4 * bodies]`; one of 1 ends at the cone's wall.
    """

    S: Tensor
    decrement: Tensor
    squares: Tensor
    reach: Tensor

    @classmethod
    def at(
        cls, A: Tensor, c: Tensor, prior: EntropicPrior, weight: float, barrier: float, L: Tensor
    ) -> _Step:
        """From factors `[*batch, bodies, 4, 4]`, with weights of the divergence's trace and logarithm."""
        flat, eye = prior.step_basis.flatten(1), torch.eye(4).to(L)
        units = to_inertial_parameters(
            L[..., None, :, :] @ prior.step_basis @ L[..., None, :, :].mT
        )
        told = torch.einsum("bki,...ksi->...ksb", prior.base_map.unflatten(-1, (-1, 10)), units)
        # Householder's vectors and R of told* = Q R, of Q times R.
        packed = torch.geqrf(told.flatten(-3, -2))
        R = packed[0][..., : len(prior.base_map), :].triu()
        beta = parameters_of_factors(L) @ prior.base_map.mT
        slope = (
            (weight * L.mT @ prior.inverse_inertia @ L - barrier * eye).flatten(-2) @ flat.mT
        ).flatten(-2)
        turned = torch.ormqr(*packed, slope[..., None], transpose=True)[..., 0]
        seen, unseen = turned.tensor_split([R.shape[-1]], -1)
        steep = seen + 2 * matvec(R, matvec(A, beta) - c)
        curvature = R @ A @ R.mT
        H = 2 * curvature + barrier * torch.eye(R.shape[-1]).to(L)
        scale = H.diagonal(dim1=-2, dim2=-1).rsqrt()
        along = scale * _solution(scale[..., :, None] * H * scale[..., None, :], scale * steep)
        turned = torch.cat([along, unseen / barrier], -1)
        S = torch.ormqr(*packed, turned[..., None])[..., 0].unflatten(-1, (-1, 10)) @ flat
        S = S.unflatten(-1, (4, 4))
        if not bool(S.isfinite().all()):
            raise _too_far_apart("steps of the fit are no numbers.")
        return cls(
            S,
            (steep * along).sum(-1) + unseen.square().sum(-1) / barrier,
            (along * matvec(curvature, along)).sum(-1),
            torch.linalg.eigvalsh(S).flatten(-2),
        )

    def change(self, size: Tensor, barrier: float) -> Tensor:
        """How parts of the step `[*batch]` change the objective, where a difference of two would drown."""
        part = size[..., None] * self.reach
        bend = -barrier * (torch.log1p(-part) + part).sum(-1)
        return size * (size * self.squares - self.decrement) + bend

    def taken(self, L: Tensor, size: Tensor) -> Tensor:
        """Factors of where a part of the step leads."""
        return L @ torch.linalg.cholesky(torch.eye(4).to(L) - size[..., None, None, None] * self.S)


def _newton(
    A: Tensor, c: Tensor, prior: EntropicPrior, weight: float, barrier: float, L: Tensor, most: int,
    *, loose: bool = False,
) -> tuple[Tensor, int, bool]:  # fmt: skip
    """Newton's method with steps that stay in the cone.

    Args:
        A: of the squares.
        c: of the squares.
        prior: the nominal robot.
        weight: of its divergence, but its logarithm.
        barrier: weight of that.
        L: factors of pseudo-inertias, where to begin. Inertias next to the wall, which numbers do not tell
            from it, have factors.
        most: steps, at most.
        loose: only to where the next barrier begins.

    Returns:
        Where it is, how many steps that took, and whether it is the minimum.
    """
    enough = barrier / 10 if loose else 1e-11 * barrier
    done = torch.zeros(c.shape[:-1], dtype=torch.bool)
    last = c.new_full(c.shape[:-1], torch.inf)
    for count in range(1, most + 1):
        step = _Step.at(A, c, prior, weight, barrier, L)
        # So near it falls by its square, or is rounding: a whole step is right, and the last.
        small = step.decrement <= barrier / 100
        near = (small & (step.decrement > last / 4)) | (step.decrement <= enough)
        farthest, last = step.reach.amax(-1), step.decrement
        size = torch.where(farthest > MAX_STEP_TO_BOUNDARY, MAX_STEP_TO_BOUNDARY / farthest, 1.0)
        while True:
            high = ~done & ~near & ~(step.change(size, barrier) <= -0.1 * size * step.decrement)
            if not bool(high.any()):
                break
            if bool((high & (size < 1e-12)).any()):
                return L, count, False
            size = torch.where(high, size / 2, size)
        L = torch.where(done[..., None, None, None], L, step.taken(L, torch.where(done, 0.0, size)))
        done = done | near
        if bool(done.all()):
            return L, count, True
    return L, most, False


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
        f"{what}",
        "Forces or inertias are too far apart in size.",
        "Check the units of the log, or pass a larger prior.",
    )
