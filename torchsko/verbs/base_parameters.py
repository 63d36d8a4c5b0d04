"""Base parameters: what torques can tell of inertial numbers, as named combinations."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from torchsko.errors import MechanismError, ShapeError
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.regressors import drive_regressor, torque_regressor

NAMES = ("m", "mx", "my", "mz", "Ixx", "Ixy", "Iyy", "Ixz", "Iyz", "Izz")
"""The ten numbers of `inertial_parameters`, as the names of combinations call them."""

FIRST = (9, 4, 5, 7, 8, 1, 2, 6, 3, 0)
"""In which order numbers of a body lead."""

STATES = 64
"""Random states, times dofs, whose torques say what is independent."""


@dataclass(frozen=True, eq=False)
class BaseParameters:
    """Combinations of inertial numbers that torques depend on, each led by a number of its own.

    Attributes:
        names: of each, "joint3: Izz of link3 + 0.08 my of link4 ..." in words.
        matrix: takes all inertial numbers to the combinations, `[base, 10 bodies]`; with armatures all these
            and then the armature of each dof of the tree, `[base, 10 bodies + num_tree_dof]`.
        independent: columns that lead, `[base]`.
        unseen: names of numbers that no torque depends on, by themselves or in a combination.
    """

    names: tuple[str, ...]
    matrix: Tensor
    independent: Tensor
    unseen: tuple[str, ...]

    def __len__(self) -> int:
        """Their number."""
        return len(self.names)

    def of(self, phi: Tensor) -> Tensor:
        """Their values: `[*batch, 10 bodies]`, with armatures as in ``matrix``, to `[*batch, base]`.

        Raises:
            ShapeError: when phi has another number of entries.
        """
        if phi.shape[-1:] != self.matrix.shape[-1:]:
            raise ShapeError(
                f"phi has shape {list(phi.shape)}.",
                f"Combinations are of {self.matrix.shape[-1]} numbers: inertial ones, body after body, then "
                "armatures where asked for.",
                "Pass torchsko.inertial_parameters(mech).flatten(-2), say, and mech.armature behind it.",
            )
        return phi @ self.matrix.mT

    @property
    def representative(self) -> Tensor:
        """Takes values of the combinations to numbers of equal torques, of the shape of ``matrix.T``.

        The numbers that lead are the values, the others zero; no body need have these.
        """
        n, p = self.matrix.shape
        S = self.matrix.new_zeros(p, n)
        S[self.independent, torch.arange(n)] = 1
        return S


def base_parameters(
    mech: MechanismLike, *, tolerance: float = 1e-9, armature: bool = False
) -> BaseParameters:
    """The combinations of `inertial_parameters` that joint forces depend on.

    Columns of the torque regressor at random states, whatever the limits, are gone through from base to tip,
    of a body moments of inertia first and the mass last: one that depends on those before is taken into
    these. So what a body shares with the one that carries it is counted there, as in the books. Ranks are
    told in float64, whatever the mechanism's type.

    With armatures, which stand behind all inertial numbers, those that forces cannot tell from moments of
    inertia are counted there: that of a first joint about an upright z axis adds to Izz of its link.

    Args:
        mech: one robot; its inertial numbers do not matter.
        tolerance: length of what is left of a column, in units of the longest one, below which it depends on
            the others.
        armature: whether combinations are of ``mech.armature`` as well, what `drive_regressor` takes to
            forces.

    Returns:
        `BaseParameters`: their names, and the matrices to and from them.

    Raises:
        MechanismError: when parameters have batch dimensions, or the tolerance is no number between 0 and 1.

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
        W = torch.cat([W, drive_regressor(double, q, qd, qdd)[..., 0]], -1)
        label += _armatures(robot)
        order += range(len(order), len(label))
    W = W.flatten(0, 1)
    chosen = _independent(W, order, tolerance)
    # Not by `lstsq`, whose last digits depend on where arrays lie in memory: two fits of a log would differ.
    Q, R = torch.linalg.qr(W[:, chosen])
    K = torch.linalg.solve_triangular(R, Q.mT @ W, upper=True)
    K = torch.where(K.abs() > 1e-8, K, 0.0)
    K[:, chosen] = torch.eye(len(chosen)).to(W)
    names = tuple(_named(K[k], chosen[k], label) for k in range(len(chosen)))
    alone = [name for name, column in zip(label, K.mT, strict=True) if not bool(column.any())]
    index = torch.tensor(chosen, device=robot.device)
    return BaseParameters(names, K.to(robot.dtype), index, tuple(alone))


def anywhere(mech: Mechanism, count: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random states and accelerations, whatever the limits.

    Files say 0 of limits that nobody knew: at rest in one place a joint hides what its forces depend on.

    Args:
        mech: one robot.
        count: of states.
        seed: of these.

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
    """A name for the armature of each dof of the tree, numbered where its joint has several."""
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
            "Which numbers forces depend on is told of one robot, in words.",
            "Pass the robot that was loaded, or mech.replace(...) with numbers of one sample.",
        )
    known = isinstance(tolerance, Real) and not isinstance(tolerance, bool)
    if not 0 < (float(tolerance) if known else 0.0) < 1:
        raise MechanismError(
            f"tolerance is {tolerance!r}.",
            "A column depends on others where less than this share of the longest one is left of it.",
            "Pass tolerance=1e-9, say.",
        )


def _independent(W: Tensor, order: list[int], tolerance: float) -> list[int]:
    """Columns that no earlier ones of an order give."""
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
