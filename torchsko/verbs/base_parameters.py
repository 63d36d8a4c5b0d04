"""Base parameters: the identifiable combinations of inertial parameters, by name."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import MechanismError, ShapeError
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.regressors import friction_regressor, torque_regressor

NAMES = ("m", "mx", "my", "mz", "Ixx", "Ixy", "Iyy", "Ixz", "Iyz", "Izz")
"""Labels of the ten numbers of `inertial_parameters` in the names of combinations."""

FIRST = (9, 4, 5, 7, 8, 1, 2, 6, 3, 0)
"""Priority of the parameters of a body as leading parameters."""

STATES = 64
"""Number of random states per dof from which the rank is determined."""


@dataclass(frozen=True, eq=False)
class BaseParameters:
    """Combinations of inertial parameters that torques depend on, each with a leading parameter.

    Attributes:
        names: text of each combination, "Izz of link3 + 0.08 my of link4 ...".
        matrix: maps all inertial parameters to the combinations, `[base, 10 bodies]`; with armatures, these
            and then the armature of each dof of the tree, `[base, 10 bodies + num_tree_dof]`.
        independent: columns of the leading parameters, `[base]`.
        unseen: names of parameters that no torque depends on, alone or in a combination.
    """

    names: tuple[str, ...]
    matrix: Tensor
    independent: Tensor
    unseen: tuple[str, ...]

    def __len__(self) -> int:
        """The number of combinations."""
        return len(self.names)

    def of(self, phi: Tensor) -> Tensor:
        """Values of the combinations, `[*batch, base]`.

        Args:
            phi: inertial parameters `[*batch, 10 bodies]`, followed by armatures if ``matrix`` has them.

        Raises:
            ShapeError: when phi has another number of entries.
        """
        if phi.shape[-1:] != self.matrix.shape[-1:]:
            raise ShapeError(
                f"phi has shape {list(phi.shape)}.",
                f"The combinations have {self.matrix.shape[-1]} parameters: inertial ones body by "
                f"body, then armatures "
                "if armature=True.",
                "Pass torchsko.inertial_parameters(mech).flatten(-2), followed by mech.armature if needed.",
            )
        return phi @ self.matrix.mT

    @property
    def representative(self) -> Tensor:
        """Matrix that maps values of the combinations to parameters with equal torques, as ``matrix.T``.

        The leading parameters take the values, the others are zero; the result need not be physical.
        """
        n, p = self.matrix.shape
        S = self.matrix.new_zeros(p, n)
        S[self.independent, torch.arange(n)] = 1
        return S


def base_parameters(
    mech: MechanismLike, *, tolerance: float = 1e-9, armature: bool = False
) -> BaseParameters:
    """The combinations of `inertial_parameters` that joint forces depend on.

    Columns of the torque regressor at random states, which ignore joint limits, are taken from base to tip;
    of each body the moments of inertia come first and the mass last. A column that depends on earlier ones
    is merged into them. Parameters that a body shares with its parent are therefore assigned to the parent,
    as in textbooks. Ranks are determined in float64.

    Armatures follow all inertial parameters. An armature that is not separable from a moment of inertia is
    merged into it: that of a first joint about a vertical z axis is added to Izz of its link.

    Args:
        mech: one robot; the values of its inertial parameters do not matter.
        tolerance: a column depends on the others if its residual is shorter than this fraction of the longest
            column.
        armature: include ``mech.armature`` in the combinations, with its columns of `friction_regressor`.

    Returns:
        `BaseParameters`: their names, and the matrices to and from them.

    Raises:
        MechanismError: when parameters have batch dimensions, or the tolerance is not between 0 and 1.

    Reference: M. Gautier, *Numerical calculation of the base inertial parameters of robots*, Journal of
    Robotic Systems 8(4), 1991; H. Mayeda, K. Yoshida, K. Osuka, *Base parameters of manipulator dynamic
    models*, IEEE Trans. Robotics and Automation 6(3), 1990.

    Example:
        >>> import torchsko as ts
        >>> arm = ts.load(ts.robots.panda)
        >>> base = ts.base_parameters(arm)
        >>> len(base), base.names[0]
        (43, 'Izz of link1 + Iyy of link2')
        >>> base.of(ts.inertial_parameters(arm).flatten(-2)).shape
        torch.Size([43])
        >>> ts.base_parameters(arm, armature=True).names[0]
        'Izz of link1 + Iyy of link2 + armature of joint1'
    """
    robot = as_mechanism(mech)
    _check(robot, tolerance)
    double = robot.double()
    q, qd, qdd = anywhere(double, STATES, seed=0)
    W = torque_regressor(double, q, qd, qdd).flatten(-2)
    label = [f"{n} of {body}" for body in robot.body_names for n in NAMES]
    order = [10 * body + k for body in range(robot.num_bodies) for k in FIRST]
    if armature:
        W = torch.cat([W, friction_regressor(double, q, qd, qdd)[..., 0]], -1)
        label += _armatures(robot)
        order += range(len(order), len(label))
    W = W.flatten(0, 1)
    chosen = _independent(W, order, tolerance)
    # Not `lstsq`: its last digits depend on memory alignment, and two fits of one log would differ.
    Q, R = torch.linalg.qr(W[:, chosen])
    K = torch.linalg.solve_triangular(R, Q.mT @ W, upper=True)
    K = torch.where(K.abs() > 1e-8, K, 0.0)
    K[:, chosen] = torch.eye(len(chosen)).to(W)
    names = tuple(_named(K[k], chosen[k], label) for k in range(len(chosen)))
    alone = [name for name, column in zip(label, K.mT, strict=True) if not bool(column.any())]
    index = torch.tensor(chosen, device=robot.device)
    return BaseParameters(names, K.to(robot.dtype), index, tuple(alone))


def anywhere(mech: Mechanism, count: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random states and accelerations that ignore joint limits.

    Robot files often have limits of 0 for unknown limits, and a joint at one position excites too little.

    Args:
        mech: one robot.
        count: number of states.
        seed: seed of the random generator.

    Returns:
        q `[count, num_q]`, qd and qdd `[count, num_dof]`.
    """
    far = torch.full_like(mech.lower, torch.inf)
    free = mech.replace(
        lower=-far, upper=far, velocity_limit=torch.full_like(mech.velocity_limit, torch.inf)
    )
    g = torch.Generator(device=mech.device).manual_seed(seed)
    q, qd = free.random_state(count, generator=g)
    return q, qd, torch.randn(qd.shape, generator=g, dtype=qd.dtype, device=qd.device)


def _armatures(mech: Mechanism) -> list[str]:
    """Names of the armatures of the dofs of the tree, numbered where a joint has several."""
    names = []
    for joint in mech.tree_joint_names:
        dofs = mech.tree_dof_slice(joint)
        count = dofs.stop - dofs.start
        names += [f"armature of {joint}{f'[{k}]' * (count > 1)}" for k in range(count)]
    return names


def _check(mech: Mechanism, tolerance: Any) -> None:
    if mech.batch_shape:
        raise MechanismError(
            f"the parameters of {mech.name!r} have the batch dimensions {list(mech.batch_shape)}.",
            "Base parameters have names and are determined for one robot at a time.",
            "Pass the robot that was loaded, or mech.replace(...) with numbers of one sample.",
        )
    known = isinstance(tolerance, Real) and not isinstance(tolerance, bool)
    if not 0 < (float(tolerance) if known else 0.0) < 1:
        raise MechanismError(
            f"tolerance is {tolerance!r}.",
            "A column depends on others if its residual is below this fraction of the longest column.",
            "Pass tolerance=1e-9, say.",
        )


def _independent(W: Tensor, order: list[int], tolerance: float) -> list[int]:
    """Columns that are linearly independent of the earlier ones in an order."""
    chosen: list[int] = []
    Q = W.new_zeros(len(W), 0)
    scale = W.norm(dim=0).max()
    for j in order:
        rest = W[:, j]
        for _ in range(2):  # twice is enough for orthogonality to rounding
            rest = rest - Q @ (Q.mT @ rest)
        length = rest.norm()
        if length > tolerance * scale:
            chosen.append(j)
            Q = torch.cat([Q, (rest / length)[:, None]], 1)
    return sorted(chosen)


def _named(row: Tensor, lead: int, label: list[str]) -> str:
    others = [j for j in row.nonzero()[:, 0].tolist() if j != lead]
    terms = [label[lead]]
    for j in others:
        x = row[j].item()
        size = "" if abs(abs(x) - 1) < 1e-9 else f"{abs(x):.4g} "
        terms.append(f"{'-' if x < 0 else '+'} {size}{label[j]}")
    return " ".join(terms)
