r"""Parametrizations: maps from unconstrained numbers onto physical ones, with an exact way back.

Each is a module of the kind that `torch.nn.utils.parametrize` takes: ``forward`` maps what an
optimiser moves to the physical value, ``right_inverse`` maps a start value back, so that
``forward(right_inverse(x))`` is x. Whatever the optimiser does, the value stays in its domain.

==================== ====================================== ======================================
parametrization      physical value                         domain
==================== ====================================== ======================================
`Free`               any tensor                             everything
`Positive`           any tensor                             > 0
`Bounded`            any tensor                             between two bounds
`Rotation`           rotation matrix                        SO(3)
`InertiaLogCholesky` mass, centre of mass, inertia          positive definite pseudo-inertia
==================== ====================================== ======================================
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchsko.errors import MechanismError
from torchsko.spatial.rotation import matrix_to_quaternion, quaternion_to_matrix


class Parametrization(nn.Module):
    """Base class of the parametrizations: a ``forward``, its ``right_inverse``, and where to start."""

    def start(self, value: Tensor) -> Tensor:
        """The value to start from, given the mechanism's own; of its shape."""
        return value

    def right_inverse(self, value: Tensor) -> Tensor:
        """The unconstrained numbers of a value; of any shape, besides those of `Rotation`.

        Raises:
            MechanismError: when the value is not in the domain.
        """
        raise NotImplementedError


class Free(Parametrization):
    """No constraint: centre of mass, gravity, position of a joint."""

    def forward(self, theta: Tensor) -> Tensor:
        """The number itself."""
        return theta

    def right_inverse(self, value: Tensor) -> Tensor:
        """The value itself."""
        return value


class Positive(Parametrization):
    """Positive numbers by their logarithm: damping, friction, armature, stiffness, a mass.

    Steps of an optimiser are relative, so numbers of any size learn alike.

    Args:
        init: value to start from instead of the mechanism's own; needed where that is zero, which
            no logarithm reaches.

    Example:
        >>> import torch
        >>> Positive().right_inverse(torch.ones(2)), Positive(init=0.5).start(torch.zeros(2))
        (tensor([0., 0.]), tensor([0.5000, 0.5000]))
    """

    def __init__(self, init: float | None = None) -> None:
        super().__init__()
        self.init = init

    def start(self, value: Tensor) -> Tensor:
        """`init`, or the mechanism's own value."""
        return value if self.init is None else torch.full_like(value, self.init)

    def forward(self, theta: Tensor) -> Tensor:
        """exp(theta), elementwise."""
        return theta.exp()

    def right_inverse(self, value: Tensor) -> Tensor:
        """log(value), elementwise.

        Raises:
            MechanismError: when a number is not positive.
        """
        if not bool((value > 0).all()):
            raise MechanismError(
                f"it starts at {value.min().item():g}.",
                "Positive() learns the logarithm of a number, so it starts above zero.",
                "Pass Positive(init=0.01), or give the mechanism another value: mech.replace(...).",
            )
        return value.log()


class Bounded(Parametrization):
    """Numbers between two bounds, by a sigmoid.

    Args:
        lower: lower bound, not reached.
        upper: upper bound, not reached.
        init: value to start from instead of the mechanism's own.

    Raises:
        MechanismError: when `lower` is not below `upper`.
    """

    def __init__(self, lower: float, upper: float, init: float | None = None) -> None:
        super().__init__()
        if not lower < upper:
            raise MechanismError(
                f"Bounded({lower}, {upper}) holds no number.",
                "The lower bound is below the upper one.",
                "Pass Bounded(-1.0, 1.0), say.",
            )
        self.lower, self.upper, self.init = lower, upper, init

    def start(self, value: Tensor) -> Tensor:
        """`init`, or the mechanism's own value."""
        return value if self.init is None else torch.full_like(value, self.init)

    def forward(self, theta: Tensor) -> Tensor:
        """Lower + (upper - lower) sigmoid(theta), elementwise."""
        return self.lower + (self.upper - self.lower) * theta.sigmoid()

    def right_inverse(self, value: Tensor) -> Tensor:
        """Logarithm of (value - lower) / (upper - value), elementwise.

        Raises:
            MechanismError: when a number is not strictly between the bounds.
        """
        if not bool(((value > self.lower) & (value < self.upper)).all()):
            raise MechanismError(
                f"it starts at {value.tolist()}.",
                f"Bounded({self.lower}, {self.upper}) holds numbers strictly between the two.",
                "Widen them, or pass init=..., a value between them.",
            )
        return ((value - self.lower) / (self.upper - value)).log()


class Rotation(Parametrization):
    """Rotation matrices by a quaternion of any length: how a joint is mounted."""

    def forward(self, theta: Tensor) -> Tensor:
        """The rotation of the quaternion `w x y z` in a matrix of four numbers `[*, 4]`."""
        return quaternion_to_matrix(theta)

    def right_inverse(self, value: Tensor) -> Tensor:
        """A unit quaternion of the rotation, `[*, 3, 3]` to `[*, 4]`."""
        return matrix_to_quaternion(value)


def _refuse_extent(moments: Tensor, rounding: Tensor) -> None:
    """Refuse an inertia per mass `[*, 6]` [m^2] whose second moments are not positive definite."""
    xx, yy, zz, xy, xz, yz = moments.unbind(-1)
    half = (xx + yy + zz) / 2
    rows = [[half - xx, -xy, -xz], [-xy, half - yy, -yz], [-xz, -yz, half - zz]]
    second = torch.stack([torch.stack(row, -1) for row in rows], -2)
    below = -torch.linalg.eigvalsh(second)[..., 0]
    if bool((below > rounding).any()):
        spread = 1.1 * below.max().item() ** 0.5
        raise MechanismError(
            "it starts with an inertia that no rigid body has (the largest principal moment is more than "
            "the sum of the others).",
            "InertiaLogCholesky() learns physical inertias only.",
            f"Correct the inertia, or pass InertiaLogCholesky(spread={spread:.2g}), which smears the mass "
            "out so far [m] that a body has it.",
        )
    raise MechanismError(
        "its mass starts on a point, a line or a plane (the largest principal moment of "
        "inertia is the sum of the others).",
        "InertiaLogCholesky() learns the logarithm of an extent, which is zero there.",
        "Pass InertiaLogCholesky(spread=0.01): one centimetre more in every direction.",
    )


class InertiaLogCholesky(Parametrization):
    r"""All inertial parameters of a body, physical whatever the ten numbers behind them.

    The pseudo-inertia is factored, J = U U* with U upper triangular and a positive diagonal,

    .. math::
        U = e^{\alpha} \begin{bmatrix} e^{d_1} & s_{12} & s_{13} & t_1 \\ & e^{d_2} & s_{23}
        & t_2 \\ & & e^{d_3} & t_3 \\ & & & 1 \end{bmatrix}.

    Read off the last row and column: the mass is exp(2 alpha), t the centre of mass, and the
    triangle left over, S, gives the second moments about it, mass S S*. That form is used here: no
    difference of large numbers where the body's frame is far from its centre of mass.

    Values are packed as `[*, 10]`: mass, centre of mass (3), inertia about it (xx, yy, zz, xy, xz,
    yz); the unconstrained numbers as alpha, d1, d2, d3, s12, s13, s23, t1, t2, t3.

    Args:
        spread: how far to smear out the start's mass in every direction [m]: adds mass * spread^2
            to its second moments. For point masses and flat bodies, which have no log-Cholesky
            factor.

    Reference: C. Rucker, P. Wensing, *Smooth parameterization of rigid-body inertia*, IEEE Robotics
    and Automation Letters 7(2), 2022.
    """

    def __init__(self, spread: float = 0.0) -> None:
        super().__init__()
        self.spread = spread

    def start(self, value: Tensor) -> Tensor:
        """The mechanism's own value `[*, 10]`, smeared out by `spread`."""
        mass = value[..., :1]
        extra = 2 * self.spread**2 * mass.expand(*mass.shape[:-1], 3)
        return value + torch.nn.functional.pad(extra, (4, 3))

    def forward(self, theta: Tensor) -> Tensor:
        """Mass, centre of mass and inertia of log-Cholesky numbers, `[*, 10]`."""
        alpha, d1, d2, d3, s12, s13, s23, *t = theta.unbind(-1)
        mass, x, y, z = (2 * alpha).exp(), d1.exp(), d2.exp(), d3.exp()
        # Second moments about the centre of mass, over the mass: S S*.
        xx, yy, zz = x * x + s12 * s12 + s13 * s13, y * y + s23 * s23, z * z
        xy, xz, yz = s12 * y + s13 * s23, s13 * z, s23 * z
        inertia = [mass * part for part in (yy + zz, xx + zz, xx + yy, -xy, -xz, -yz)]
        return torch.stack([mass, *t, *inertia], -1)

    def right_inverse(self, value: Tensor) -> Tensor:
        """Log-Cholesky numbers of mass [kg], centre of mass [m] and inertia [kg m^2], `[*, 10]`.

        Raises:
            MechanismError: on a mass that is not positive, an inertia that no rigid body has, or a mass on a
                point, a line or a plane.
        """
        mass, *t = value[..., :4].unbind(-1)
        if not bool((mass > 0).all()):
            raise MechanismError(
                f"its mass starts at {mass.min().item():g} kg.",
                "InertiaLogCholesky() learns the logarithm of a mass: a massless link cannot start."
                "",
                "Give the link mass and inertia: mech.replace(mass=..., inertia=...).",
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
        # Written so that a nan fails it.
        if not bool((pivots > rounding[..., None]).all()):
            _refuse_extent(torch.stack([xx, yy, zz, xy, xz, yz], -1), rounding)
        logs = [mass.log() / 2, *(pivots.log() / 2).unbind(-1)]
        return torch.stack([*logs, s12, s13, s23, *t], -1)
