r"""Physically consistent least squares, a convex problem solved by Newton's method in the physical cone.

.. math::
    \min_\phi \; \beta^T A \beta - 2 c^T \beta
    + \lambda \sum_k \big[ D(J_k(\phi) \| J_{k,0}) + \kappa D(m_k \| m_{k,0}) \big], \qquad
    \beta = K \phi, \qquad D(X \| Y) = \mathrm{tr}(X Y^{-1}) - \log\det(X Y^{-1}) - \dim X

with the 4 x 4 pseudo-inertias J, linear in the ten inertial parameters phi of each body, masses m, and base
parameters beta. D is infinite where J is not positive definite, so a step that lowers the objective stays
physical, and steps that are too long are halved. The objective is self-concordant: Newton's method converges
to the global minimum from any physical start. A parametrization such as `InertiaLogCholesky` would lose
convexity and stall near the boundary of the cone.

The divergence of J alone (kappa = 0) prefers to change the masses of small bodies where the log determines a
first moment, and the fitted masses of simulated arms were up to ten times the true ones. Robot files state
masses more accurately than centers of mass and inertias.

Near the boundary plain Newton steps are short, and forces that require inertias far from the nominal ones
would take a thousand of them. So the log-determinant is also used as a barrier: its weight decreases from a
large value to lambda, while the weight of the trace stays lambda.

Steps are computed in symmetric matrices S that move J = L L* to L (I - S) L*, and m to m (1 - u* S u), u the
normalized last row of L. In these coordinates, with the direction u u* scaled by (1 + kappa)^(-1/2), the
Hessian of the barrier is the identity everywhere, and J is never inverted. A QR factorization separates the
null space of K, where only the divergence acts, so that rounding errors of the squares cannot move parameters
there.

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
"""Row and column in the rotational inertia of each of the last six inertial parameters."""

MAX_STEP_TO_BOUNDARY = 0.6
"""Largest step, as a share of the distance to the boundary of the cone. Closer steps would only double."""

MAX_NEWTON_STEPS = 200
"""Limit of Newton steps for one barrier weight; about ten are usual."""

MAX_WARM_START_STEPS = 30
"""Limit of Newton steps from a warm start, before a restart from the nominal robot."""

MIN_TRACE_RATIO = 1e-6
"""Smallest weight of the trace, relative to the barrier's, which bounds the inertias."""

MASS_WEIGHT = 5.0
"""Weight kappa of the divergence of a mass: masses of a nominal robot are known about 2.4 times, the square
root of 1 + kappa, as accurately as its other inertial parameters."""


def pseudo_inertia_basis(like: Tensor) -> Tensor:
    """Pseudo-inertia of each unit vector of the ten inertial parameters, `[10, 4, 4]`.

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


def inertial_parameter_map(like: Tensor) -> Tensor:
    """Matrix from the entries of a pseudo-inertia to inertial parameters, `[16, 10]`."""
    # The dual basis of the orthogonal units of mass and first moments, and of those of inertias.
    return torch.linalg.pinv(pseudo_inertia_basis(like).flatten(1))


def symmetric_basis(like: Tensor) -> Tensor:
    """Orthonormal basis of the symmetric 4 x 4 matrices, `[10, 4, 4]`."""
    i, j = torch.triu_indices(4, 4)
    E = like.new_zeros(10, 4, 4)
    E[torch.arange(10), i, j] = E[torch.arange(10), j, i] = torch.where(i == j, 1.0, 0.5**0.5).to(
        like
    )
    return E


def scale_along(x: Tensor, mass: Tensor) -> Tensor:
    """Scale the part of vectors along unit vectors by (1 + kappa)^(-1/2), `[*batch, bodies, 10, columns]`.

    Args:
        x: coordinates in the step basis, `[*batch, bodies, 10, columns]`.
        mass: unit vectors, `[*batch, bodies, 10]`.
    """
    shrink = 1 - (1 + MASS_WEIGHT) ** -0.5
    return torch.addcmul(x, mass[..., None], mass[..., None, :] @ x, value=-shrink)


@dataclass(frozen=True, eq=False)
class EntropicPrior:
    """Divergence from a nominal robot, of pseudo-inertias and masses, and the map to base parameters.

    Methods take batches of inertial parameters.

    Attributes:
        nominal: nominal inertial parameters, `[bodies, 10]`.
        base_map: map from inertial to base parameters, `[base, bodies * 10]`.
        inverse_inertia: inverses of the nominal pseudo-inertias, `[bodies, 4, 4]`.
        logdet_inverse: sum of their log-determinants.
        basis: `pseudo_inertia_basis`.
        step_basis: `symmetric_basis`.
        parameter_map: `inertial_parameter_map`.
        base_of_pseudo: map from the pseudo-inertia of each body to base parameters, `[bodies, 16, base]`.
    """

    nominal: Tensor
    base_map: Tensor
    inverse_inertia: Tensor
    logdet_inverse: Tensor
    basis: Tensor
    step_basis: Tensor
    parameter_map: Tensor
    base_of_pseudo: Tensor

    @classmethod
    def at(cls, nominal: Tensor, base_map: Tensor) -> EntropicPrior:
        """Build the prior of physical nominal parameters `[bodies, 10]` and a base map."""
        basis = pseudo_inertia_basis(nominal)
        J = (nominal @ basis.flatten(1)).unflatten(-1, (4, 4))
        inverse = torch.linalg.inv(J)
        logdet = torch.linalg.slogdet(inverse)[1].sum()
        to_parameters = inertial_parameter_map(nominal)
        to_base = to_parameters @ base_map.unflatten(-1, (-1, 10)).permute(1, 2, 0)
        return cls(
            nominal, base_map, inverse, logdet, basis, symmetric_basis(nominal), to_parameters, to_base
        )  # fmt: skip

    def parameters_of_factors(self, L: Tensor) -> Tensor:
        """Inertial parameters `[*batch, bodies * 10]` of factors L, `[*batch, bodies, 4, 4]`."""
        return ((L @ L.mT).flatten(-2) @ self.parameter_map).flatten(-2)

    def pseudo(self, phi: Tensor) -> Tensor:
        """Pseudo-inertias `[*batch, bodies, 4, 4]` of inertial parameters `[*batch, bodies * 10]`."""
        return (phi.unflatten(-1, (-1, 10)) @ self.basis.flatten(1)).unflatten(-1, (4, 4))

    def factors(self, phi: Tensor) -> Tensor:
        """Cholesky factors of the pseudo-inertias, `[*batch, bodies, 4, 4]`.

        Raises:
            FitError: when the parameters are not physical.
        """
        L, info = torch.linalg.cholesky_ex(self.pseudo(phi))
        if bool(info.any()):
            raise _scaling_error("an inertia of the fit is not positive definite.")
        return L

    def physical(self, L: Tensor) -> Tensor:
        """Inertial parameters of factors, `[*batch, n]`.

        Raises:
            FitError: when rounding moves them out of the cone.
        """
        phi = self.parameters_of_factors(L)
        self.factors(phi)
        return phi

    def value(self, phi: Tensor) -> Tensor:
        """Sum of the bodies' divergences `[*batch]`, inf outside of the cone."""
        J = self.pseudo(phi)
        L, info = torch.linalg.cholesky_ex(J)
        logdet = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum((-2, -1))
        trace = (self.inverse_inertia * J).sum((-3, -2, -1)) - 4 * J.shape[-3]
        ratio = J[..., 3, 3] / self.nominal[:, 0]
        masses = (ratio - 1 - ratio.clamp_min(1e-300).log()).sum(-1)
        divergence = trace - logdet - self.logdet_inverse + MASS_WEIGHT * masses
        inside = (info == 0).all(-1) & divergence.isfinite()
        return torch.where(inside, divergence, torch.inf)

    def derivatives(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient `[*batch, n]` and positive definite Hessian `[*batch, n, n]` of `value`; n = 10 bodies."""
        J, units = self.pseudo(phi), self.basis.flatten(1)
        inverse, mass = torch.linalg.inv(J), J[..., 3, 3, None] * torch.eye(10).to(phi)[0]
        gradient = (self.inverse_inertia - inverse).flatten(-2) @ units.mT
        per_mass = torch.where(mass > 0, 1 / mass, 0.0)  # zero for the other nine parameters
        nominal = torch.where(mass > 0, 1 / self.nominal[:, :1], 0.0)
        gradient = gradient + MASS_WEIGHT * (nominal - per_mass)
        each = inverse[..., None, :, :] @ self.basis
        blocks = each.flatten(-2) @ each.mT.flatten(-2).mT
        blocks = blocks + MASS_WEIGHT * per_mass.square().diag_embed()
        diagonal = torch.eye(len(self.nominal)).to(phi)[:, None, :, None]
        return gradient.flatten(-2), (blocks[..., None, :] * diagonal).flatten(-2).flatten(-3, -2)


def entropic_least_squares(
    A: Tensor, c: Tensor, prior: EntropicPrior, weight: float, start: Tensor | None = None
) -> tuple[Tensor, int]:
    """Minimize the objective above for a batch of problems.

    Args:
        A: positive semidefinite, `[*batch, base, base]`.
        c: `[*batch, base]`.
        prior: divergence from the nominal robot.
        weight: lambda, positive.
        start: physical initial parameters, `[*batch, n]` with n = 10 bodies. Default: the nominal ones.

    Returns:
        phi, `[*batch, n]`, and the number of Newton steps of the slowest problem.

    Raises:
        FitError: on a weight that is not positive, or when Newton's method does not converge.
    """
    if not weight > 0:
        raise FitError(
            f"the weight of the prior is {weight:g}.",
            "A positive weight is needed to bound unidentifiable parameters and to keep inertias physical.",
            "Pass a small positive number, for example prior=1e-6.",
        )
    steps = 0
    if start is not None:
        L, steps, ended = _newton(
            A, c, prior, weight, weight, prior.factors(start), MAX_WARM_START_STEPS
        )
        if ended:
            return prior.physical(L), steps
    L = prior.factors(prior.nominal.flatten().expand(*c.shape[:-1], -1))
    barrier, last = _largest_decrease(A, c), False
    while not last:
        last = barrier <= 3 * weight
        barrier = weight if last else barrier
        L, count, converged = _newton(
            A,
            c,
            prior,
            max(weight, MIN_TRACE_RATIO * barrier),
            barrier,
            L,
            MAX_NEWTON_STEPS,
            loose=not last,
        )
        steps, barrier = steps + count, barrier / 10
        if not converged:
            raise _scaling_error(f"Newton's method has not converged in {count} steps.")
    return prior.physical(L), steps


@dataclass(frozen=True, eq=False)
class _Step:
    """Newton step from L L* to L (I - S) L*.

    Attributes:
        S: `[*batch, bodies, 4, 4]`.
        decrement: squared Newton decrement, `[*batch]`.
        squares: second-order change of the squares, `[*batch]`.
        reach: eigenvalues of S, `[*batch, 4 * bodies]`. A step with an eigenvalue of 1 ends on the boundary.
        mass_loss: relative decrease of each mass, `[*batch, bodies]`.
    """

    S: Tensor
    decrement: Tensor
    squares: Tensor
    reach: Tensor
    mass_loss: Tensor

    @classmethod
    def at(
        cls, A: Tensor, c: Tensor, prior: EntropicPrior, weight: float, barrier: float, L: Tensor
    ) -> _Step:
        """Compute the step at factors `[*batch, bodies, 4, 4]` for weights of trace and barrier."""
        flat, eye = prior.step_basis.flatten(1), torch.eye(4).to(L)
        # L S L* of all S at once, by the Kronecker product of L with itself: fewer products than by each S.
        square = L[..., :, None, :, None] * L[..., None, :, None, :]
        moved = square.flatten(-4, -3).flatten(-2) @ flat.mT
        jacobian = moved.mT @ prior.base_of_pseudo
        row = L[..., 3, :, None]
        square = row.square().sum((-2, -1))
        mass = (row @ row.mT).flatten(-2) @ flat.mT / square[..., None]
        # Householder vectors and R of the QR factorization of the transposed Jacobian.
        packed = torch.geqrf(scale_along(jacobian, mass).flatten(-3, -2))
        R = packed[0][..., : len(prior.base_map), :].triu()
        beta = prior.parameters_of_factors(L) @ prior.base_map.mT
        slope = (weight * L.mT @ prior.inverse_inertia @ L - barrier * eye).flatten(-2) @ flat.mT
        pull = MASS_WEIGHT * (weight * square / prior.nominal[:, 0] - barrier)
        slope = scale_along((slope + pull[..., None] * mass)[..., None], mass).flatten(-3)
        turned = torch.ormqr(*packed, slope[..., None], transpose=True)[..., 0]
        # The gradient in the range of K and in its null space.
        in_range, in_null = turned.tensor_split([R.shape[-1]], -1)
        gradient = in_range + 2 * matvec(R, matvec(A, beta) - c)
        curvature = R @ A @ R.mT
        H = 2 * curvature + barrier * torch.eye(R.shape[-1]).to(L)
        scale = H.diagonal(dim1=-2, dim2=-1).rsqrt()
        along = scale * _solve(scale[..., :, None] * H * scale[..., None, :], scale * gradient)
        turned = torch.cat([along, in_null / barrier], -1)
        S = torch.ormqr(*packed, turned[..., None])[..., 0].unflatten(-1, (-1, 10, 1))
        S = scale_along(S, mass)[..., 0]
        loss = (mass * S).sum(-1)
        S = (S @ flat).unflatten(-1, (4, 4))
        if not bool(S.isfinite().all()):
            raise _scaling_error("a Newton step of the fit is not finite.")
        return cls(
            S,
            (gradient * along).sum(-1) + in_null.square().sum(-1) / barrier,
            (along * matvec(curvature, along)).sum(-1),
            torch.linalg.eigvalsh(S).flatten(-2),
            loss,
        )

    def change(self, size: Tensor, barrier: float) -> Tensor:
        """Change of the objective for shares of the step `[*batch]`, without cancellation."""
        part, loss = size[..., None] * self.reach, size[..., None] * self.mass_loss
        masses = MASS_WEIGHT * (torch.log1p(-loss) + loss).sum(-1)
        bend = -barrier * ((torch.log1p(-part) + part).sum(-1) + masses)
        return size * (size * self.squares - self.decrement) + bend

    def apply(self, L: Tensor, size: Tensor) -> Tensor:
        """Factors after a share of the step."""
        return L @ torch.linalg.cholesky(torch.eye(4).to(L) - size[..., None, None, None] * self.S)


def _newton(
    A: Tensor, c: Tensor, prior: EntropicPrior, weight: float, barrier: float, L: Tensor, max_steps: int,
    *, loose: bool = False,
) -> tuple[Tensor, int, bool]:  # fmt: skip
    """Damped Newton iteration in the cone.

    Args:
        A: matrix of the squares.
        c: right side of the squares.
        prior: divergence from the nominal robot.
        weight: weight of its trace.
        barrier: weight of its log-determinant.
        L: initial factors. Factors represent inertias so close to the boundary that inertial parameters round
            onto it.
        max_steps: limit of steps.
        loose: stop at the accuracy that the next barrier weight needs.

    Returns:
        The final factors, the number of steps, and whether the method converged.
    """
    tolerance = barrier / 10 if loose else 1e-11 * barrier
    done = torch.zeros(c.shape[:-1], dtype=torch.bool)
    last = c.new_full(c.shape[:-1], torch.inf)
    for count in range(1, max_steps + 1):
        step = _Step.at(A, c, prior, weight, barrier, L)
        # In the region of quadratic convergence a full step is right; a slower decrease is rounding.
        small = step.decrement <= barrier / 100
        near = (small & (step.decrement > last / 4)) | (step.decrement <= tolerance)
        farthest, last = step.reach.amax(-1), step.decrement
        size = torch.where(farthest > MAX_STEP_TO_BOUNDARY, MAX_STEP_TO_BOUNDARY / farthest, 1.0)
        while True:
            high = ~done & ~near & ~(step.change(size, barrier) <= -0.1 * size * step.decrement)
            if not bool(high.any()):
                break
            if bool((high & (size < 1e-12)).any()):
                return L, count, False
            size = torch.where(high, size / 2, size)
        L = torch.where(done[..., None, None, None], L, step.apply(L, torch.where(done, 0.0, size)))
        done = done | near
        if bool(done.all()):
            return L, count, True
    return L, max_steps, False


def _largest_decrease(A: Tensor, c: Tensor) -> float:
    """Largest decrease of the squares by one parameter alone, the scale of the initial barrier."""
    size = A.diagonal(dim1=-2, dim2=-1)
    return float(torch.where(size > 0, c * c / size, 0.0).amax())


def _solve(A: Tensor, b: Tensor) -> Tensor:
    try:
        return solve_each(A, b)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # public by its documentation
        raise _scaling_error("the Hessian of the fit is numerically singular.") from None


def _scaling_error(what: str) -> FitError:
    return FitError(
        what,
        "Forces or inertias differ by too many orders of magnitude.",
        "Check the units of the log, or pass a larger prior.",
    )
