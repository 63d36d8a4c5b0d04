r"""Torque constants from motor currents and the masses of the nominal robot.

The current of a joint is proportional to its rigid-body force, plus friction:
:math:`i_j = a_j Y_j \phi + F_j`. Currents alone cannot separate a common scale of all masses from a common
scale of all torque constants; the scale is the one at which base parameters stay nearest to the nominal ones.

Reference: M. Gautier, S. Briot, *Global identification of joint drive gains and dynamic parameters of
robots*, ASME J. Dynamic Systems, Measurement and Control 136(5), 2014 (identifiability from currents).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.friction import Gain, Offset, RotorInertia, SmoothCoulomb, Viscous
from torchsko.identification.logs.calibration import mapped
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.accumulate import ResidualSample, read_log, time_folds
from torchsko.identification.regression.data_checks import check_sufficient_data
from torchsko.identification.regression.drives import Drives
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

FRICTION = (Viscous(), SmoothCoulomb(0.05), Offset(), RotorInertia())
"""Joint terms of this estimate; the fit selects better ones afterwards."""

MIN_CORRELATION = 0.3
"""Smallest correlation of a current, without friction, with the nominal force."""

MIN_FREE_SHARE = 1e-8
"""Smallest share of a mean square current or nominal force that friction leaves; less is rounding."""

ROUNDING = 1e-13
"""Mean square current over that of the nominal force below which the current is rounding [A^2/N^2]."""

PRIOR_SHARE = 1e-4
"""Information of the prior at the nominal robot, over that of the log, for each base parameter."""

MAX_ITERATIONS = 100
"""Number of Gauss-Newton iterations."""

TOLERANCE = 1e-9
"""Relative change of the torque constants at convergence."""


@dataclass(frozen=True, eq=False)
class Constants:
    """Torque constants at the joints, gears included [N m/A or N/A].

    Attributes:
        value: `[num_dof]`; negative if a positive current drives the joint backwards, nan if the log does not
            determine it, and 1 for a joint whose force was measured.
        deviation: standard errors by the noise of currents, `[num_dof]`. They do not include errors of the
            nominal masses, which scale all constants.
    """

    value: Tensor
    deviation: Tensor


def torque_constants(mech: Mechanism, log: Log, settings: FilterSettings) -> Constants:
    """Estimate torque constants from a log of motor currents.

    A joint whose current is not correlated with the nominal force has no constant, and is left out.

    Args:
        mech: the nominal robot.
        log: motor currents of all joints or of some.
        settings: of the filter.

    Raises:
        FitError: when no current is correlated with the nominal force, or the iterations do not converge.
    """
    free = mech.replace(effort_limit=torch.full_like(mech.effort_limit, torch.inf))
    drives = Drives.of_log(log, mech.mass)
    problem = RegressionProblem.of(free, (*FRICTION, Gain()), drives=drives)
    normal, _, seen = read_log(
        problem, log, settings, time_folds(log, 2, settings.half_width), lambda part: None
    )
    check_sufficient_data(log, mech, normal, settings)
    columns = _columns(problem)
    parts, size, free_of_friction = _current_equations(normal.pooled, columns, len(problem.base))
    current = _current_dofs(mech, log)
    correlated = free_of_friction & _correlated(parts, size)
    used = torch.where(current, correlated, size > 0)
    if not (used & current).any():
        raise FitError(
            f"{log.name}: no torque constant can be estimated.",
            "No current, without friction, is correlated with the nominal force.",
            "Move the joints faster or against gravity, or pass known constants: --gain JOINT=... or "
            "log.calibrate(mech, gain={...}).",
        )
    A, c = torch.stack([p.A for p in parts]), torch.stack([p.c for p in parts])
    A, c, size = (torch.where(_like(used, x), x, 0.0) for x in (A, c, size))
    scale, change = _joint_scales(A, c, size, used & current)
    autocorrelation = _autocorrelation(problem, seen, columns, parts, scale, change)
    H, near, _ = _equations(A, c, size, scale, change)
    free = torch.cat([torch.ones_like(change).bool(), used & current]).nonzero().flatten()
    bread = torch.zeros_like(H[0])
    bread[free[:, None], free] = torch.linalg.inv(
        (H.sum(0) + torch.diag(near))[free[:, None], free]
    )
    count = (normal.pooled.count[0] / autocorrelation).clamp_min(1.0)
    covariance = bread @ (H / count[:, None, None]).sum(0) @ bread
    spread = covariance.diagonal()[len(change) :].clamp_min(0).sqrt()
    undetermined = torch.where(current & ~used, torch.nan, 1.0)
    return Constants(undetermined / scale, undetermined * spread / scale.square())


def with_forces(log: Log, constants: Tensor) -> Log:
    """Convert a log of currents to one of forces; constants of coupled joints are those of their drives."""
    gain = np.diag(constants.detach().cpu().numpy())
    if log.drives is not None:
        gain = np.linalg.solve(log.drives.T, np.eye(len(gain))) @ gain @ log.drives.T
    return replace(log, tau=mapped(log.tau, gain), current=False)


def _columns(problem: RegressionProblem) -> Tensor:
    """Transformation of the columns of a problem to those of currents, `[columns, columns]`.

    The new columns are base parameters, the nominal force, friction, and the current. Springs and armature
    are part of the nominal force, because they act through the torque constant.
    """
    beta = problem.base.of(inertial_parameters(problem.mech).flatten())
    base, laws = len(beta), len(FRICTION)
    change = beta.new_zeros(base + laws + 2, base + laws + 2)
    change[:base, :base] = torch.eye(base)
    change[base + laws, base] = 1
    change[base : base + laws, base + 1 : -1] = torch.eye(laws)
    change[:base, -1], change[base + laws :, -1] = -beta, 1.0
    return change


def _current_equations(
    normal: NormalEquations, columns: Tensor, base: int
) -> tuple[list[SchurComplement], Tensor, Tensor]:
    """Each joint's equations of base parameters and of the nominal force, with friction eliminated.

    Returns:
        The equations; the mean square current without friction, `[num_dof]`; and a mask of the dofs at which
        friction explains neither the whole current nor the whole nominal force, `[num_dof]`.
    """
    G = columns.mT @ mean_equations(normal) @ columns
    parts = [schur_complement(g, base + 1, range(len(FRICTION))) for g in G]
    left = [g[-1, -1] - g[base + 1 : -1, -1] @ p.start for g, p in zip(G, parts, strict=True)]
    size, force = torch.stack(left).clamp_min(0), torch.stack([p.A[-1, -1] for p in parts])
    current, nominal = G[:, -1, -1], G[:, base, base]
    has_current = size > MIN_FREE_SHARE * current + ROUNDING * nominal
    return parts, size, has_current & (force > MIN_FREE_SHARE * nominal)


def _autocorrelation(
    problem: RegressionProblem, seen: ResidualSample, columns: Tensor,
    parts: list[SchurComplement], scale: Tensor, change: Tensor,
) -> Tensor:  # fmt: skip
    """Integrated autocorrelation of each joint's error [samples], `[num_dof]`."""
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


def _like(mask: Tensor, x: Tensor) -> Tensor:
    """A mask of dofs with further dimensions, as those of `x`."""
    return mask.reshape(-1, *[1] * (x.ndim - 1))


def _current_dofs(mech: Mechanism, log: Log) -> Tensor:
    """True for each dof whose force is a current, `[num_dof]`."""
    current = torch.zeros(mech.num_dof, dtype=torch.bool, device=mech.device)
    for name in log.current_joints(mech.joint_names):
        current[mech.dof_slice(name)] = True
    return current


def _correlated(parts: list[SchurComplement], size: Tensor) -> Tensor:
    """True for each current that is correlated with the nominal force, `[num_dof]`."""
    products = torch.stack([part.c[-1].abs() for part in parts])
    squares = torch.stack([part.A[-1, -1] for part in parts]) * size
    return products > MIN_CORRELATION * squares.clamp_min(1e-300).sqrt()


def _joint_scales(A: Tensor, c: Tensor, size: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
    """Current per force of each joint, `[num_dof]`, and changes of base parameters, by Gauss-Newton steps.

    Args:
        A: normal equations of each joint, zero for joints that are left out.
        c: right sides.
        size: mean squares of the currents.
        current: joints whose scale is estimated, `[num_dof]`; it is 1 for the others.

    Raises:
        FitError: when the iterations do not converge.
    """
    base = A.shape[-1] - 1
    change = A.new_zeros(base)
    scale = torch.where(current, c[:, -1] / A[:, -1, -1].clamp_min(1e-300), 1.0)
    free = torch.cat([torch.ones_like(change).bool(), current]).nonzero().flatten()
    for _ in range(MAX_ITERATIONS):
        each, near, slope = _equations(A, c, size, scale, change)
        H = each.sum(0) + torch.diag(near)
        unit = H.diagonal().clamp_min(1e-300).rsqrt()[free]
        step = torch.linalg.solve(unit[:, None] * H[free[:, None], free] * unit, unit * slope[free])
        move = torch.zeros_like(slope).index_copy(0, free, unit * step)
        change, scale = change - move[:base], scale - move[base:]
        if bool((move[base:].abs() <= TOLERANCE * scale.abs()).all()):
            return scale, change
    raise FitError(
        f"torque constants did not converge in {MAX_ITERATIONS} iterations.",
        "The currents contain little information about the robot.",
        "Log faster or more varied motions, or pass forces: tau times known constants.",
    )


def _equations(
    A: Tensor, c: Tensor, size: Tensor, scale: Tensor, change: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gauss-Newton equations at present scales and base parameters, weighted by each joint's error.

    Returns:
        Equations of each joint, `[num_dof, base + num_dof, base + num_dof]`, the diagonal of the prior, and
        the gradient.
    """
    dofs, base = len(scale), len(change)
    robot = torch.cat([change, change.new_ones(1)])
    x = scale[:, None] * robot
    Ax = matvec(A, x)
    error = (size - 2 * (x * c).sum(-1) + (x * Ax).sum(-1)).clamp_min(1e-9 * size + 1e-300)
    J = A.new_zeros(dofs, base + 1, base + dofs)
    J[:, :base, :base] = scale[:, None, None] * torch.eye(base).to(A)
    J[torch.arange(dofs), :, base + torch.arange(dofs)] = robot.expand(dofs, -1)
    H = J.mT @ A @ J / error[:, None, None]
    slope = (matvec(J.mT, Ax - c) / error[:, None]).sum(0)
    information = H.sum(0).diagonal()[:base]
    # Base parameters on which only forces of left-out joints depend stay nominal.
    near = torch.where(information > 0, PRIOR_SHARE * information, 1.0)
    near = torch.cat([near, H.new_zeros(dofs)])
    return H, near, slope + near * torch.cat([change, change.new_zeros(dofs)])
