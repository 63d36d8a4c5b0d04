r"""Parametrizations: maps from unconstrained coordinates onto physical values, with exact inverses.

Each is a module with the interface of `torch.nn.utils.parametrize`. ``forward`` maps coordinates to the
physical value, and ``right_inverse`` maps a value back: ``forward(right_inverse(x))`` is x. Values stay in
their domain for all coordinates.

`torchsko.Dynamics` learns an offset of the coordinates from those of the nominal value (see
`torchsko.learn.parametrized.ParametrizedValue`): an offset of zero is the nominal robot.

==================== ====================================== ======================================
parametrization      physical value                         domain
==================== ====================================== ======================================
`Free`               any tensor                             all numbers
`Positive`           any tensor                             > 0
`Bounded`            any tensor                             between two bounds
`Rotation`           rotation matrix                        SO(3)
`InertiaLogCholesky` mass, center of mass, inertia          positive definite pseudo-inertia
==================== ====================================== ======================================
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchsko.errors import MechanismError
from torchsko.spatial.rotation import matrix_to_quaternion, quaternion_to_matrix


class Parametrization(nn.Module):
    """Base class of parametrizations: the map ``forward``, its ``right_inverse``, and the initial value."""

    def start(self, value: Tensor) -> Tensor:
        """Initial value for the mechanism's value; both have one shape."""
        return value

    def right_inverse(self, value: Tensor) -> Tensor:
        """Unconstrained coordinates of a value, of its shape; those of `Rotation` are quaternions.

        Raises:
            MechanismError: when the value is outside of the domain.
        """
        raise NotImplementedError


class Free(Parametrization):
    """Identity, for values without a constraint: center of mass, gravity, position of a joint."""

    def forward(self, theta: Tensor) -> Tensor:
        """The coordinates, unchanged."""
        return theta

    def right_inverse(self, value: Tensor) -> Tensor:
        """The value, unchanged."""
        return value


class Positive(Parametrization):
    """Exponential, for positive numbers: damping, friction, armature, stiffness, a mass.

    Optimizer steps change values by a factor, so small and large values learn at the same relative rate.

    Args:
        init: initial value in place of the mechanism's. It is required where that value is zero, which has
            no logarithm.

    Example:
        >>> import torch
        >>> Positive().right_inverse(torch.ones(2)), Positive(init=0.5).start(torch.zeros(2))
        (tensor([0., 0.]), tensor([0.5000, 0.5000]))
    """

    def __init__(self, init: float | None = None) -> None:
        super().__init__()
        self.init = init

    def start(self, value: Tensor) -> Tensor:
        """`init`, or the mechanism's value."""
        return value if self.init is None else torch.full_like(value, self.init)

    def forward(self, theta: Tensor) -> Tensor:
        """Exponential of theta, elementwise."""
        return theta.exp()

    def right_inverse(self, value: Tensor) -> Tensor:
        """Logarithm of the value, elementwise.

        Raises:
            MechanismError: when a number is not positive.
        """
        if not bool((value > 0).all()):
            raise MechanismError(
                f"its initial value is {value.min().item():g}.",
                "Positive() learns the logarithm of a value, which has to be above zero.",
                "Pass Positive(init=0.01), or change the value with mech.replace(...).",
            )
        return value.log()


class Bounded(Parametrization):
    """Scaled sigmoid, for numbers between two bounds.

    Args:
        lower: lower bound, excluded.
        upper: upper bound, excluded.
        init: initial value in place of the mechanism's.

    Raises:
        MechanismError: when `lower` is not below `upper`.
    """

    def __init__(self, lower: float, upper: float, init: float | None = None) -> None:
        super().__init__()
        if not lower < upper:
            raise MechanismError(
                f"Bounded({lower}, {upper}) has an empty range.",
                "The lower bound has to be below the upper bound.",
                "Pass Bounded(-1.0, 1.0).",
            )
        self.lower, self.upper, self.init = lower, upper, init

    def start(self, value: Tensor) -> Tensor:
        """`init`, or the mechanism's value."""
        return value if self.init is None else torch.full_like(value, self.init)

    def forward(self, theta: Tensor) -> Tensor:
        """The value lower + (upper - lower) sigmoid(theta), elementwise."""
        return self.lower + (self.upper - self.lower) * theta.sigmoid()

    def right_inverse(self, value: Tensor) -> Tensor:
        """Logarithm of (value - lower) / (upper - value), elementwise.

        Raises:
            MechanismError: when a number is not strictly between the bounds.
        """
        if not bool(((value > self.lower) & (value < self.upper)).all()):
            raise MechanismError(
                f"its initial value is {value.tolist()}.",
                f"Bounded({self.lower}, {self.upper}) requires values strictly between its bounds.",
                "Widen the bounds, or pass init=... with a value between them.",
            )
        return ((value - self.lower) / (self.upper - value)).log()


class Rotation(Parametrization):
    """Rotation matrices from quaternions of any length, for the orientation of a joint's frame."""

    def forward(self, theta: Tensor) -> Tensor:
        """Rotation matrices `[*, 3, 3]` of quaternions (w, x, y, z), `[*, 4]`."""
        return quaternion_to_matrix(theta)

    def right_inverse(self, value: Tensor) -> Tensor:
        """Unit quaternions `[*, 4]` of rotation matrices `[*, 3, 3]`."""
        return matrix_to_quaternion(value)


def _refuse_extent(moments: Tensor, rounding: Tensor) -> None:
    """Raise for an inertia per mass `[*, 6]` [m^2] whose second moments are not positive definite."""
    xx, yy, zz, xy, xz, yz = moments.unbind(-1)
    half = (xx + yy + zz) / 2
    rows = [[half - xx, -xy, -xz], [-xy, half - yy, -yz], [-xz, -yz, half - zz]]
    second = torch.stack([torch.stack(row, -1) for row in rows], -2)
    below = -torch.linalg.eigvalsh(second)[..., 0]
    if bool((below > rounding).any()):
        spread = 1.1 * below.max().item() ** 0.5
        raise MechanismError(
            "its initial inertia is unphysical: the largest principal moment exceeds the sum of the others.",
            "InertiaLogCholesky() represents physical inertias only.",
            f"Correct the inertia, or pass InertiaLogCholesky(spread={spread:.2g}), which spreads the mass "
            "by that length [m] and makes the inertia physical.",
        )
    raise MechanismError(
        "its initial mass lies on a point, a line or a plane: the largest principal moment of inertia equals "
        "the sum of the others.",
        "InertiaLogCholesky() learns the logarithm of the extent, which is zero there.",
        "Pass InertiaLogCholesky(spread=0.01), which adds one centimeter in every direction.",
    )


class InertiaLogCholesky(Parametrization):
    r"""All inertial parameters of a body, physical for any ten coordinates.

    The pseudo-inertia is factored as J = U U* with U upper triangular and a positive diagonal,

    .. math::
        U = e^{\alpha} \begin{bmatrix} e^{d_1} & s_{12} & s_{13} & t_1 \\ & e^{d_2} & s_{23}
        & t_2 \\ & & e^{d_3} & t_3 \\ & & & 1 \end{bmatrix}.

    The mass is exp(2 alpha), t is the center of mass, and mass S S* are the second moments about it, with S
    the upper left triangle. This form avoids differences of large numbers where the frame of the body is far
    from its center of mass.

    Values are packed as `[*, 10]`: mass, center of mass (3), inertia about it (xx, yy, zz, xy, xz,
    yz). Coordinates are alpha, d1, d2, d3, s12, s13, s23, t1, t2, t3.

    Args:
        spread: length by which the initial mass is spread in every direction [m]. It adds mass * spread^2 to
            the second moments, for point masses and flat bodies, which have no log-Cholesky factor.

    Reference: C. Rucker, P. Wensing, *Smooth parameterization of rigid-body inertia*, IEEE Robotics
    and Automation Letters 7(2), 2022.
    """

    def __init__(self, spread: float = 0.0) -> None:
        super().__init__()
        self.spread = spread

    def start(self, value: Tensor) -> Tensor:
        """The mechanism's value `[*, 10]`, its mass spread by `spread`."""
        mass = value[..., :1]
        extra = 2 * self.spread**2 * mass.expand(*mass.shape[:-1], 3)
        return value + torch.nn.functional.pad(extra, (4, 3))

    def forward(self, theta: Tensor) -> Tensor:
        """Mass, center of mass and inertia of log-Cholesky coordinates, `[*, 10]`."""
        alpha, d1, d2, d3, s12, s13, s23, *t = theta.unbind(-1)
        mass, x, y, z = (2 * alpha).exp(), d1.exp(), d2.exp(), d3.exp()
        # Second moments about the center of mass, over the mass: S S*.
        xx, yy, zz = x * x + s12 * s12 + s13 * s13, y * y + s23 * s23, z * z
        xy, xz, yz = s12 * y + s13 * s23, s13 * z, s23 * z
        inertia = [mass * part for part in (yy + zz, xx + zz, xx + yy, -xy, -xz, -yz)]
        return torch.stack([mass, *t, *inertia], -1)

    def right_inverse(self, value: Tensor) -> Tensor:
        """Log-Cholesky coordinates of mass [kg], center of mass [m] and inertia [kg m^2], `[*, 10]`.

        Raises:
            MechanismError: on a mass that is not positive, an unphysical inertia, or a mass on a point, a
                line or a plane.
        """
        mass, *t = value[..., :4].unbind(-1)
        if not bool((mass > 0).all()):
            raise MechanismError(
                f"its initial mass is {mass.min().item():g} kg.",
                "InertiaLogCholesky() learns the logarithm of the mass, so the body cannot be massless.",
                "Give the body mass and inertia with mech.replace(mass=..., inertia=...).",
            )
        xx, yy, zz, xy, xz, yz = (value[..., 4:] / mass[..., None]).unbind(-1)
        # Elimination from the last row up: second moments are (trace / 2) 1 - inertia.
        z2 = (xx + yy - zz) / 2
        s13, s23 = -xz / z2.sqrt(), -yz / z2.sqrt()
        y2 = (xx + zz - yy) / 2 - s23 * s23
        s12 = (-xy - s13 * s23) / y2.sqrt()
        x2 = (yy + zz - xx) / 2 - s12 * s12 - s13 * s13
        pivots = torch.stack([x2, y2, z2], -1)
        rounding = 16 * torch.finfo(value.dtype).eps * (xx + yy + zz)
        # The negated form also refuses nan.
        if not bool((pivots > rounding[..., None]).all()):
            _refuse_extent(torch.stack([xx, yy, zz, xy, xz, yz], -1), rounding)
        logs = [mass.log() / 2, *(pivots.log() / 2).unbind(-1)]
        return torch.stack([*logs, s12, s13, s23, *t], -1)
