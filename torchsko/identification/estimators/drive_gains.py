r"""Motor currents as joint forces: torque constants that nobody knows, by the weights of the nominal robot.

Each joint's current is a part of the rigid robot's force, and friction: :math:`i_j = a_j Y_j \phi + F_j`. A
robot twice as heavy with constants twice as large has the same currents, so a log tells constants but for one
factor of all. That is where the robot's numbers stay nearest to the nominal ones, in forces.

Reference: M. Gautier, S. Briot, *Global identification of joint drive gains and dynamic parameters of
robots*, ASME J. Dynamic Systems, Measurement and Control 136(5), 2014 (what currents do not tell).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.diagnostics.data_checks import check_sufficient_data
from torchsko.identification.friction import Gain, Offset, SmoothCoulomb, Viscous
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.accumulate import ResidualSample, read_log
from torchsko.identification.regression.elimination import (
    SchurComplement,
    mean_equations,
    schur_complement,
)
from torchsko.identification.regression.normal_equations import NormalEquations, RegressionProblem
from torchsko.identification.signals.filter_settings import FilterSettings
from torchsko.identification.uncertainty.residuals import integrated_autocorrelation
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.shapes import matvec
from torchsko.verbs.regressors import inertial_parameters

LAWS = (Viscous(), SmoothCoulomb(0.05), Offset())
"""Friction that is told from a rigid robot's force; a fit chooses better ones afterwards."""

SHOWN = 0.3
"""Correlation of a current, less friction, with the nominal robot's force below which it tells nothing."""

NEAR = 1e-4
"""Of the prior to the nominal robot, in parts of what the log tells of each number."""

ROUNDS = 100
"""Of Gauss and Newton's method at most."""

STILL = 1e-9
"""Change of constants at which they are the same, over their size."""


@dataclass(frozen=True, eq=False)
class Constants:
    """Torque constants at the joints, gears included [N m/A or N/A].

    Attributes:
        value: `[num_dof]`; negative where a motor's current counts against the joint.
        deviation: their standard deviations, by the noise of currents, `[num_dof]`. The nominal robot's
            weights are taken for right: all constants are wrong by the part that these are.
    """

    value: Tensor
    deviation: Tensor


def torque_constants(mech: Mechanism, log: Log, settings: FilterSettings) -> Constants:
    """Torque constants of a log of motor currents.

    Args:
        mech: the nominal robot.
        log: of motor currents.
        settings: how it is filtered.

    Raises:
        FitError: when the force of the nominal robot does not show in a joint's current, by its name, or
            the constants do not come to rest.
    """
    free = mech.replace(effort_limit=torch.full_like(mech.effort_limit, torch.inf))
    problem = RegressionProblem.of(free, (*LAWS, Gain()))
    normal, _, seen = read_log(problem, log, settings, 2, lambda part: None)
    check_sufficient_data(log, mech, normal, settings)
    columns = _columns(problem)
    parts, size = _of_currents(normal.pooled, columns, len(problem.base))
    _refuse_unseen(mech, log, parts, size)
    A, c = torch.stack([p.A for p in parts]), torch.stack([p.c for p in parts])
    scale, change = _joint_scales(A, c, size)
    lasting = _lasting(problem, seen, columns, parts, scale, change)
    H, near, _ = _equations(A, c, size, scale, change)
    bread = torch.linalg.inv(H.sum(0) + torch.diag(near))
    count = normal.pooled.count[0] / lasting
    covariance = bread @ (H / count[:, None, None]).sum(0) @ bread
    spread = covariance.diagonal()[len(change) :].clamp_min(0).sqrt()
    return Constants(1 / scale, spread / scale.square())


def with_forces(log: Log, constants: Tensor) -> Log:
    """A log of currents as one of forces."""
    tau = np.asarray(log.tau) * constants.detach().cpu().numpy()
    return replace(log, tau=tau, current=False)


def _columns(problem: RegressionProblem) -> Tensor:
    """What makes columns of a problem those of currents, `[columns, columns]`.

    Base parameters, the nominal force, friction, and the rest of the current after springs and armature,
    made anew: these act through the constant as well.
    """
    beta = problem.base.of(inertial_parameters(problem.mech).flatten())
    base, laws = len(beta), len(LAWS)
    change = beta.new_zeros(base + laws + 2, base + laws + 2)
    change[:base, :base] = torch.eye(base)
    change[base + laws, base] = 1
    change[base : base + laws, base + 1 : -1] = torch.eye(laws)
    change[:base, -1], change[base + laws :, -1] = -beta, 1.0
    return change


def _of_currents(
    normal: NormalEquations, columns: Tensor, base: int
) -> tuple[list[SchurComplement], Tensor]:
    """Each joint's equations of base parameters and of the nominal force, friction eliminated.

    Returns:
        Their explained side, and the mean square current that friction leaves, `[num_dof]`.
    """
    G = columns.mT @ mean_equations(normal) @ columns
    parts = [schur_complement(g, base + 1, range(len(LAWS))) for g in G]
    left = [g[-1, -1] - g[base + 1 : -1, -1] @ p.start for g, p in zip(G, parts, strict=True)]
    return parts, torch.stack(left).clamp_min(0)


def _lasting(
    problem: RegressionProblem, seen: ResidualSample, columns: Tensor,
    parts: list[SchurComplement], scale: Tensor, change: Tensor,
) -> Tensor:  # fmt: skip
    """How many samples of each joint's error are one, `[num_dof]`."""
    robot = torch.cat([change, change.new_ones(1)])
    rows = []
    for part, by in zip(parts, scale, strict=True):
        x = by * robot
        rows.append(columns @ torch.cat([x, part.coefficients(x), -x.new_ones(1)]))
    weights = torch.stack(rows)
    errors = (
        torch.where(good, torch.einsum("sjc,jc->sj", X, weights), 0.0)
        for _, X, good in problem.filtered_rows(seen.motions)
    )
    return integrated_autocorrelation(*errors)


def _refuse_unseen(mech: Mechanism, log: Log, parts: list[SchurComplement], size: Tensor) -> None:
    for name, part, square in zip(mech.dof_names, parts, size, strict=True):
        shown = part.c[-1].abs() / (part.A[-1, -1] * square).sqrt().clamp_min(1e-300)
        if not shown > SHOWN:
            raise FitError(
                f"{log.name}: the torque constant of joint {name!r} is not told by its current.",
                "Without friction it follows the nominal robot's force too little "
                f"(correlation {float(shown):.2g}).",
                "Move the joint faster or under weight, or pass forces: tau times a constant you know.",
            )


def _joint_scales(A: Tensor, c: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Amperes for each N m of each joint, `[num_dof]`, and the base parameters that fit them best.

    Raises:
        FitError: when they do not come to rest.
    """
    base = A.shape[-1] - 1
    scale, change = c[:, -1] / A[:, -1, -1], A.new_zeros(base)
    for _ in range(ROUNDS):
        each, near, slope = _equations(A, c, size, scale, change)
        H = each.sum(0) + torch.diag(near)
        unit = H.diagonal().clamp_min(1e-300).rsqrt()
        move = unit * torch.linalg.solve(unit[:, None] * H * unit, unit * slope)
        change, scale = change - move[:base], scale - move[base:]
        if bool((move[base:].abs() <= STILL * scale.abs()).all()):
            return scale, change
    raise FitError(
        f"torque constants did not come to rest within {ROUNDS} rounds.",
        "Currents that tell little of the robot leave them open.",
        "Log faster or more varied motions, or pass forces: tau times constants you know.",
    )


def _equations(
    A: Tensor, c: Tensor, size: Tensor, scale: Tensor, change: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gauss and Newton's equations where scales and base parameters are, joints weighed by their errors.

    Returns:
        Those of each joint, `[num_dof, base + num_dof, base + num_dof]`, the prior's diagonal, the slope.
    """
    dofs, base = len(scale), len(change)
    robot = torch.cat([change, change.new_ones(1)])
    x = scale[:, None] * robot
    Ax = matvec(A, x)
    error = (size - 2 * (x * c).sum(-1) + (x * Ax).sum(-1)).clamp_min(1e-9 * size)
    J = A.new_zeros(dofs, base + 1, base + dofs)
    J[:, :base, :base] = scale[:, None, None] * torch.eye(base).to(A)
    J[torch.arange(dofs), :, base + torch.arange(dofs)] = robot.expand(dofs, -1)
    H = J.mT @ A @ J / error[:, None, None]
    slope = (matvec(J.mT, Ax - c) / error[:, None]).sum(0)
    near = torch.cat([NEAR * H.sum(0).diagonal()[:base], H.new_zeros(dofs)])
    return H, near, slope + near * torch.cat([change, change.new_zeros(dofs)])
