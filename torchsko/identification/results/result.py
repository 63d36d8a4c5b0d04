"""What comes out of a fit: a robot, its error bars, and what was left over."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchsko.errors import FitError
from torchsko.identification.checkpoint import put
from torchsko.identification.estimators.residual_network import Shrunk
from torchsko.identification.friction import Term, TermInput
from torchsko.identification.regression.least_squares import ParameterUncertainty
from torchsko.identification.regression.nearest_physical import PHYSICAL_METHODS, unpack_inertias
from torchsko.identification.regression.rigid_model import dof_positions, without_losses
from torchsko.identification.regression.solution import Solution
from torchsko.identification.uncertainty.residuals import Residuals
from torchsko.mechanism.coordinates import among_all_dofs
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.base_parameters import BaseParameters
from torchsko.verbs.dynamics import inverse_dynamics
from torchsko.verbs.regressors import inertial_parameters, torque_regressor


@dataclass(frozen=True, eq=False)
class Found:
    """What a fit decided on the way.

    Attributes:
        method: of estimation.
        cutoff: of the filter [Hz].
        rate: of the log [Hz].
        chosen: whether the data chose the cut-off.
        prior_weight: of the divergence from the nominal robot.
        scale: how much each dof's squared error counted, `[num_dof]`.
        equations: how many filtered forces there were.
        notes: what was wrong in the log or the robot, and what was done about it.
        constants: torque constants that were found, of a log of motor currents, `[num_dof]` [N m/A or N/A].
        constant_deviations: their standard deviations by the noise of currents; see
            `torchsko.identification.estimators.drive_gains.Constants`.
    """

    method: str
    cutoff: float
    rate: float
    chosen: bool
    prior_weight: float
    scale: Tensor
    equations: int
    notes: tuple[str, ...]
    constants: Tensor | None = None
    constant_deviations: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Fit:
    """A robot from a log; `torchsko.learn.fit` makes it.

    Attributes:
        nominal: the robot before, without damping and dry friction, and without the armature of joints whose
            `RotorInertia` was asked for.
        mechanism: the robot after; its damping and friction are those of the terms at speed. By "ols" and
            "wls" it is the nominal robot with them: numbers of least squares need be no body's.
        phi: inertial parameters, `[num_bodies * 10]`.
        terms: of each dof, forces besides the rigid robot's.
        numbers: of each dof's terms.
        deviations: their standard deviations, as the data tell; infinite where these do not tell a number
            from others, and only the nominal robot says what it is.
        base: combinations of inertial numbers that torques depend on.
        value: of these, `[base]`.
        deviation: standard deviations of the values, as the data tell, without the prior, `[base]`; likewise.
        covariance: of the values, `[base, base]`.
        least_squares: values by ordinary least squares, `[base]`.
        condition: of the data: the columns of base parameters at unit length.
        errors: cross-validation, root mean square error of each dof [N m or N], of the fit, of the nominal
            robot and of ordinary least squares, both with viscous and dry friction and an offset.
        residuals: what is left, of the whole log.
        found: what was decided on the way.
        residual: a force besides, of positions, velocities, accelerations of dofs; None where none was asked
            for.
    """

    nominal: Mechanism
    mechanism: Mechanism
    phi: Tensor
    terms: tuple[tuple[Term, ...], ...]
    numbers: tuple[Tensor, ...]
    deviations: tuple[Tensor, ...]
    base: BaseParameters
    value: Tensor
    deviation: Tensor
    covariance: Tensor
    least_squares: Tensor
    condition: float
    errors: dict[str, Tensor]
    residuals: Residuals
    found: Found
    residual: Shrunk | None = None

    @classmethod
    def of(
        cls, nominal: Mechanism, terms: Sequence[Term], solution: Solution, found: Found,
        base: BaseParameters, ordinary: Solution, told: ParameterUncertainty, left: Residuals,
        errors: dict[str, Tensor], residual: Shrunk | None = None,
    ) -> Fit:  # fmt: skip
        """Gather what the steps of a fit gave."""
        chosen = tuple(tuple(terms[k] for k in some) for some in solution.choice)
        nominal = without_losses(nominal)
        return cls(
            nominal, fitted_robot(nominal, solution.phi, chosen, solution.coefficients, found.method),
            solution.phi, chosen, solution.coefficients, told.term_std, base, base.of(solution.phi),
            told.covariance.diagonal().clamp_min(0).sqrt(), told.covariance, base.of(ordinary.phi),
            told.condition, errors, left, found, residual,
        )  # fmt: skip

    @property
    def nominal_numbers(self) -> Tensor:
        """Inertial parameters of the nominal robot, `[num_bodies * 10]`."""
        return inertial_parameters(self.nominal).flatten()

    def friction(self, q: Tensor, qd: Tensor, qdd: Tensor, *, series: bool = False) -> Tensor:
        """Forces of the terms, `[*batch, num_dof]`; arguments are those of `inverse_dynamics`."""
        load = inverse_dynamics(self.nominal, q, qd, qdd)
        motion = TermInput(dof_positions(self.nominal, q), qd, qdd, load, ordered=series)
        total = torch.zeros_like(load)
        for term in dict.fromkeys(term for some in self.terms for term in some):
            rows = zip(self.terms, self.numbers, strict=True)
            numbers = [x[some.index(term)] if term in some else x.new_zeros(()) for some, x in rows]
            total = total + torch.stack(numbers) * term.basis(motion)
        return total

    def inverse_dynamics(
        self, q: Tensor, qd: Tensor, qdd: Tensor, *, series: bool = False
    ) -> Tensor:
        """Joint forces of all that was fitted: the robot, friction, offsets, a residual.

        Args:
            q: `[*batch, num_q]`.
            qd: `[*batch, num_dof]` [rad/s or m/s].
            qdd: `[*batch, num_dof]` [rad/s^2 or m/s^2].
            series: whether the last dimension but one is time, in order, so that friction that remembers can;
                else it is at its steady value.

        Returns:
            `[*batch, num_dof]` [N m or N].
        """
        rigid = inverse_dynamics(self.nominal, q, qd, qdd)
        change = self.phi - self.nominal_numbers
        moved = torque_regressor(self.nominal, q, qd, qdd).flatten(-2) @ change
        force = rigid + moved + self.friction(q, qd, qdd, series=series)
        if self.residual is None:
            return force
        return force + self.residual(dof_positions(self.nominal, q), qd, qdd)

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        like: Any = None,
        mesh_path: Sequence[str | os.PathLike[str]] | None = None,
    ) -> None:
        """Write the fit into a folder: numbers (fit.pt), and the robot.

        The robot is ``robot.urdf`` or ``robot.xml``: the file `like` with its numbers replaced and all
        else kept, or a new URDF file, as for SDF. Files of these names are replaced. Meshes and included
        files of MJCF are copied with it, where they are not there yet; those outside of its folder stay
        where they are, and the new file names them in full. What the format has no place for is
        left out and named by a `RobotFileWarning`: rotor inertia in URDF, losses that differ among the dofs
        of one joint. fit.pt keeps it.

        Args:
            folder: made where there is none.
            like: the file that the nominal robot was loaded from, or its text.
            mesh_path: folders that MJCF may reach besides that of the file, as in `torchsko.load`.

        Raises:
            FitError: when the folder cannot be made.
            RobotFileError: when the robot cannot be written, or read again where it is.
        """
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FitError(
                f"{folder} cannot be made: {error.strerror or error}.",
                "A fit is saved into a folder of its own.",
                "Pass the path of one, or of none yet.",
            ) from error
        from torchsko.identification.results.serialization import (
            packed,
            save_robot,
            with_what_files_know,
        )

        save_robot(with_what_files_know(self, like), folder, like, mesh_path)
        put(packed(self), folder / "fit.pt")

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        residual: nn.Module | None = None,
        *,
        mesh_path: Sequence[str | os.PathLike[str]] | None = None,
    ) -> Fit:
        """Read what `save` wrote; ``torch.load`` reads numbers only, no code.

        Args:
            folder: where the fit is.
            residual: where the fit has one of a class of yours: a module of this class, for its numbers.
            mesh_path: folders that the robot may reach besides that of the fit, as in `torchsko.load`.

        Raises:
            FitError: when the folder holds no fit.
            RobotFileError: when the robot in it cannot be read.
        """
        from torchsko.identification.results.serialization import unpacked

        return unpacked(Path(folder), residual, mesh_path)

    def __str__(self) -> str:
        """The fit as a page to read."""
        from torchsko.identification.results.summary import page

        return page(self)


def fitted_robot(
    nominal: Mechanism,
    phi: Tensor,
    terms: Sequence[Sequence[Term]],
    numbers: Sequence[Tensor],
    method: str,
) -> Mechanism:
    """The nominal robot with what was fitted: inertias (where physical), damping, friction, armature."""
    changes: dict[str, Tensor] = {}
    if method in PHYSICAL_METHODS:
        changes |= zip(("mass", "com", "inertia"), unpack_inertias(phi), strict=True)
    # Those of joints that follow others are felt at the joints they follow.
    for field in ("damping", "friction"):
        total = _at_dofs(numbers, [[getattr(t, field) for t in some] for some in terms])
        changes[field] = among_all_dofs(nominal, total.clamp_min(0))
    rotors = _at_dofs(numbers, [[t.armature for t in some] for some in terms])
    changes["armature"] = (nominal.armature + among_all_dofs(nominal, rotors)).clamp_min(0)
    return nominal.replace(**changes, has_losses=True, replaced=nominal.replaced)


def _at_dofs(numbers: Sequence[Tensor], parts: Sequence[Sequence[float]]) -> Tensor:
    """Numbers of each dof's terms, added up by parts, `[num_dof]`."""
    return torch.stack(
        [row @ row.new_tensor(part) for row, part in zip(numbers, parts, strict=True)]
    )
