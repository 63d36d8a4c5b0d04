r"""Physically consistent least squares: convex, solved by Newton's method inside of the physical cone.

.. math::
    \min_\phi \; \phi^T A \phi - 2 c^T \phi + \lambda \sum_k D(J_k(\phi) \| J_{k,0}), \qquad
    D(X \| Y) = \mathrm{tr}(X Y^{-1}) - \log\det(X Y^{-1}) - 4

with the 4 x 4 pseudo-inertias J, linear in the ten numbers phi. D is infinite where J is not positive
definite, so a step that lowers the objective stays physical: a step too long is halved. The objective is
self-concordant: from any physical start Newton's method ends at the one minimum. A parametrization
(`InertiaLogCholesky`) would bend this, and its steps would stall where the cone's wall is near.

Reference: T. Lee, P. Wensing, F. Park, *Geometric robot dynamic identification: a convex programming
approach*, IEEE Transactions on Robotics 36(2), 2020; S. Boyd, L. Vandenberghe, *Convex optimization*, 9.6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsko.errors import FitError

UNITS = ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2))
"""Places of the last six of the ten numbers in the rotational inertia."""

WALL = 0.6
"""Part of the way to the cone's wall that a step goes at most: from next to it steps only double."""

NEWTON = 1000
"""Steps after which Newton's method is given up; it needs ten, near the wall hundreds."""


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
    """How far from a nominal robot, and its derivatives, in the ten numbers of each body.

    Attributes:
        nominal: `[bodies, 10]`.
        inverse: of the nominal pseudo-inertias, `[bodies, 4, 4]`.
        units: `[10, 4, 4]`.
    """

    nominal: Tensor
    inverse: Tensor
    units: Tensor

    @classmethod
    def at(cls, nominal: Tensor) -> Prior:
        """Of nominal numbers `[bodies, 10]`, all physical."""
        units = pseudo_units(nominal)
        J = (nominal @ units.flatten(1)).reshape(-1, 4, 4)
        return cls(nominal, torch.linalg.inv(J), units)

    def pseudo(self, phi: Tensor) -> Tensor:
        """Pseudo-inertias of numbers `[bodies * 10]` or `[bodies, 10]`."""
        return (phi.reshape(-1, 10) @ self.units.flatten(1)).reshape(-1, 4, 4)

    def value(self, phi: Tensor) -> float:
        """The sum of divergences; inf outside of the cone."""
        J = self.pseudo(phi)
        L, info = torch.linalg.cholesky_ex(J)
        if bool(info.any()) or not bool(J.isfinite().all()):
            return float("inf")
        logdet = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum()
        known = torch.linalg.slogdet(self.inverse)[1].sum()
        return float((self.inverse * J).sum() - logdet - known - 4 * len(J))

    def room(self, phi: Tensor, move: Tensor) -> float:
        """How far one can go against a direction before the cone ends."""
        L = torch.linalg.cholesky(self.pseudo(phi))
        half = torch.linalg.solve_triangular(L, self.pseudo(move), upper=False)
        both = torch.linalg.solve_triangular(L, half.mT, upper=False)
        most = float(torch.linalg.eigvalsh((both + both.mT) / 2).max())
        return 1 / most if most > 0 else float("inf")

    def slope(self, phi: Tensor) -> Tensor:
        """The gradient, `[bodies * 10]`."""
        away = self.inverse - torch.linalg.inv(self.pseudo(phi))
        return (away.flatten(1) @ self.units.flatten(1).mT).flatten()

    def curvature(self, phi: Tensor) -> Tensor:
        """The Hessian, `[bodies * 10, bodies * 10]`, positive definite."""
        each = torch.linalg.inv(self.pseudo(phi))[:, None] @ self.units
        return torch.block_diag(*(each.flatten(2) @ each.mT.flatten(2).mT))


def entropic_least_squares(
    A: Tensor, c: Tensor, prior: Prior, weight: float, start: Tensor | None = None
) -> tuple[Tensor, int]:
    """The numbers that are the minimum above.

    Args:
        A: positive semidefinite, `[10 bodies, 10 bodies]`.
        c: `[10 bodies]`.
        prior: the nominal robot.
        weight: lambda, positive.
        start: physical numbers to begin at; the nominal ones when left out.

    Returns:
        phi, `[10 bodies]`, and how many steps were taken.

    Raises:
        FitError: on a weight that is not positive, or no progress.
    """
    if not weight > 0:
        raise FitError(
            f"the weight of the prior is {weight:g}.\n"
            "It keeps inertias physical, and bounds what the data do not tell.\n"
            "Pass a small positive number, prior=1e-6 say."
        )
    if start is not None:
        return _newton(A, c, prior, weight, start.flatten())
    # From the nominal robot along the path of weights: a small one alone takes many steps along the wall.
    phi, steps, now = prior.nominal.flatten(), 0, 1e3
    while now > 3 * weight:
        phi, taken = _newton(A, c, prior, now, phi, loose=True)
        steps, now = steps + taken, now / 10
    phi, taken = _newton(A, c, prior, weight, phi)
    return phi, steps + taken


def _newton(
    A: Tensor, c: Tensor, prior: Prior, weight: float, phi: Tensor, loose: bool = False
) -> tuple[Tensor, int]:
    """Newton's method with steps that stay in the cone; if loose, only to where the next weight begins."""

    def objective(x: Tensor) -> float:
        return float(x @ (A @ x) - 2 * (c @ x)) + weight * prior.value(x)

    value = objective(phi)
    for step in range(NEWTON):
        g = 2 * (A @ phi - c) + weight * prior.slope(phi)
        H = 2 * A + weight * prior.curvature(phi)
        scale = H.diagonal().rsqrt()
        move = scale * torch.linalg.solve(scale[:, None] * H * scale, scale * g)
        decrement = float(g @ move)
        if decrement <= min(1e-8 * (1 + abs(value)), 1e-2 * weight) or (
            loose and decrement < weight / 10
        ):
            # Differences of the objective drown in rounding; so near, a whole step is right.
            return phi - move, step + 1
        size = min(1.0, WALL * prior.room(phi, move))
        while (new := objective(phi - size * move)) > value - 0.1 * size * decrement:
            size /= 2
            if size < 1e-12:
                return phi, step  # what is left to gain is below rounding
        phi, value = phi - size * move, new
    raise FitError(
        f"Newton's method has not ended after {NEWTON} steps.\n"
        "Forces or inertias may be too far apart in size.\n"
        "Check the units of the log, or pass a larger prior."
    )
