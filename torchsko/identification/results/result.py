"""The result of a fit: the robot, standard errors, residuals and findings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchsko.errors import FitError
from torchsko.identification.diagnostics.findings import Finding
from torchsko.identification.estimators.residual_network import Shrunk
from torchsko.identification.friction import Term, TermInput
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.drives import Drives
from torchsko.identification.regression.least_squares import ParameterUncertainty
from torchsko.identification.regression.nearest_physical import unpack_inertias
from torchsko.identification.regression.normal_equations import RegressionProblem
from torchsko.identification.regression.rigid_model import dof_positions, without_losses
from torchsko.identification.regression.solution import Solution
from torchsko.identification.results.reference_models import MemoryModel, ReferenceModel
from torchsko.identification.uncertainty.prior_covariance import MassUncertainty
from torchsko.identification.uncertainty.residuals import Residuals
from torchsko.mechanism.coordinates import scatter_dofs
from torchsko.mechanism.dispatch import MechanismLike
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.base_parameters import BaseParameters
from torchsko.verbs.dynamics import inverse_dynamics
from torchsko.verbs.regressors import inertial_parameters, torque_regressor

if TYPE_CHECKING:
    from torchsko.identification.results.scores import Scores


@dataclass(frozen=True, eq=False)
class FitInfo:
    """Method, settings and choices of a fit.

    Attributes:
        method: name of the estimator.
        physical: whether inertial parameters are physically consistent.
        cutoff: cut-off frequency of the filter [Hz].
        rate: sampling rate of the log [Hz].
        automatic_cutoff: whether the cut-off was chosen from the motion.
        prior_weight: weight of the divergence from the nominal robot; None for methods without a prior.
        scale: weights of the squared errors of each dof, `[num_dof]`.
        equations: number of filtered forces.
        selects_terms: whether terms were selected; standard errors are then conditional on the selection.
        constants: estimated torque constants, for a log of motor currents, `[num_dof]` [N m/A or N/A].
        constant_deviations: standard errors of the torque constants; see
            `torchsko.identification.estimators.drive_gains.Constants`.
        drives: matrix from velocities of drives to those of joints, `[num_dof, num_dof]`, of a log with
            coupled drives (`Log.drives`).
    """

    method: str
    physical: bool
    cutoff: float
    rate: float
    automatic_cutoff: bool
    prior_weight: float | None
    scale: Tensor
    equations: int
    selects_terms: bool = False
    constants: Tensor | None = None
    constant_deviations: Tensor | None = None
    drives: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Fit:
    """An identified robot, from `torchsko.identification.identify`.

    A fit has a memoryless model, for single states, robot files and forward dynamics, and a model with memory
    (`memory`) where that predicts forces along a motion better.

    Attributes:
        nominal: the nominal robot without damping, dry friction and constant joint forces, and without the
            armature of joints with a `RotorInertia` term.
        mechanism: the identified robot, with damping, dry friction, its transition speed, constant joint
            forces and armature of the memoryless model. `missing_from_mechanism` names what it lacks: terms
            of other kinds, such as `Stribeck`. Of several laws of dry friction at a joint the largest one
            sets the transition speed. Methods whose inertias are not physically consistent keep the nominal
            inertias.
        phi: inertial parameters, `[num_bodies * 10]`.
        terms: joint terms of each dof, without memory; those of coupled joints act on their drives.
        numbers: coefficients of each dof's terms.
        deviations: standard errors of the coefficients; infinite if the log does not determine them.
        base: base parameters, the combinations of inertial parameters that determine forces.
        value: their estimates, `[base]`.
        deviation: their standard errors, `[base]`; infinite if the log does not determine them. With a prior
            they include its pull towards a nominal robot whose typical error is estimated from the fit; see
            `torchsko.identification.uncertainty.prior_covariance`.
        covariance: their covariance, `[base, base]`.
        condition: condition number of the regressor with columns of unit length.
        errors: root mean square prediction errors by cross-validation, `[num_dof]` [N m or N], by name: of
            the nominal robot, of ordinary least squares, of the method, and "with memory" if there is such a
            model. The first two have viscous and dry friction and an offset.
        residuals: residuals of the whole log.
        info: method, settings and choices.
        findings: problems and remarks, the most important first.
        references: the models of the columns "nominal" and "least squares" of `errors`, fitted to the whole
            log.
        residual: learned force of positions, velocities and accelerations; None if there is none.
        memory: model with friction that depends on the past motion; None if there is none.
        masses: standard errors of the masses of `mechanism`, and the share of each that the log determines;
            None if the method does not estimate it.
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
    condition: float
    errors: dict[str, Tensor]
    residuals: Residuals
    info: FitInfo
    references: dict[str, ReferenceModel]
    findings: tuple[Finding, ...] = ()
    residual: Shrunk | None = None
    memory: MemoryModel | None = None
    masses: MassUncertainty | None = None

    @classmethod
    def of(
        cls, problem: RegressionProblem, solution: Solution, info: FitInfo,
        references: dict[str, ReferenceModel], information: ParameterUncertainty, left: Residuals,
        errors: dict[str, Tensor], findings: tuple[Finding, ...], residual: Shrunk | None = None,
        memory: MemoryModel | None = None, masses: MassUncertainty | None = None,
    ) -> Fit:  # fmt: skip
        """Collect the results of the stages of a fit."""
        chosen = ReferenceModel.of(problem, solution).terms
        nominal, base, drives = without_losses(problem.mech), problem.base, problem.drives
        # Friction of the drives of coupled joints has no parameters in a mechanism.
        coupled = () if drives is None else drives.dofs.tolist()
        terms = [() if j in coupled else x for j, x in enumerate(chosen)]
        numbers = [x[: len(some)] for x, some in zip(solution.coefficients, terms, strict=True)]
        mechanism = fitted_robot(nominal, solution.phi, terms, numbers, info.physical)
        return cls(
            nominal, mechanism, solution.phi, chosen, solution.coefficients, information.term_std, base,
            base.of(solution.phi), information.covariance.diagonal().clamp_min(0).sqrt(),
            information.covariance, information.condition, errors, left, info, references, findings, residual,
            memory, masses,
        )  # fmt: skip

    @property
    def nominal_numbers(self) -> Tensor:
        """Inertial parameters of the nominal robot, `[num_bodies * 10]`."""
        return inertial_parameters(self.nominal).flatten()

    @property
    def row_names(self) -> tuple[str, ...]:
        """Names of the equations, one for each dof: of the joints, or of the drives of coupled joints."""
        drives = Drives.of(self.info.drives)
        coupled = () if drives is None else drives.dofs.tolist()
        names = enumerate(self.mechanism.dof_names)
        return tuple(f"drive of {x}" if j in coupled else x for j, x in names)

    @property
    def least_squares(self) -> Tensor:
        """Estimates of the base parameters by ordinary least squares, `[base]`."""
        return self.base.of(self.references["least squares"].phi)

    @property
    def missing_from_mechanism(self) -> tuple[str, ...]:
        """Texts that name the parts of the memoryless model that `mechanism` does not have."""
        from torchsko.identification.results.robot_file import missing_from_mechanism

        return missing_from_mechanism(self)

    def test(self, log: Log) -> Scores:
        """Prediction errors on a log that the fit did not use.

        The log passes a filter with the cut-off frequency of the fit. The nominal robot and least squares
        are scored beside the fit, with friction from the fitted log.

        Args:
            log: measurements of the same robot. Motor currents are converted by the torque constants of the
                fit.

        Returns:
            Errors by model, `[num_dof]`, also relative to the standard deviation of the force (`nrmse`).

        Raises:
            FitError: a log that does not fit the robot, or is too short.
        """
        from torchsko.identification.results.scores import score

        return score(self, log)

    def friction(self, q: Tensor, qd: Tensor, qdd: Tensor, *, series: bool = False) -> Tensor:
        """Forces of the terms, `[*batch, num_dof]`; arguments are those of `inverse_dynamics`."""
        model, drives = self._model(series=series), Drives.of(self.info.drives)
        load, x = inverse_dynamics(self.nominal, q, qd, qdd), dof_positions(self.nominal, q)
        if drives is not None:
            x, qd, qdd, load = *map(drives.states, (x, qd, qdd)), drives.forces(load)
        motion = TermInput(x, qd, qdd, load, ordered=series)
        total = torch.zeros_like(load)
        for term in dict.fromkeys(term for some in model.terms for term in some):
            rows = zip(model.terms, model.numbers, strict=True)
            numbers = [x[some.index(term)] if term in some else x.new_zeros(()) for some, x in rows]
            total = total + torch.stack(numbers) * term.basis(motion)
        return total if drives is None else drives.joint_forces(total)

    def inverse_dynamics(
        self, q: Tensor, qd: Tensor, qdd: Tensor, *, series: bool = False
    ) -> Tensor:
        """Predict joint forces: rigid robot, joint terms and learned residual.

        Args:
            q: `[*batch, num_q]`.
            qd: `[*batch, num_dof]` [rad/s or m/s].
            qdd: `[*batch, num_dof]` [rad/s^2 or m/s^2].
            series: whether the last but one dimension is time. The model with memory, if there is one, then
                replaces the memoryless model.

        Returns:
            `[*batch, num_dof]` [N m or N].
        """
        rigid = inverse_dynamics(self.nominal, q, qd, qdd)
        change = self._model(series=series).phi - self.nominal_numbers
        moved = torque_regressor(self.nominal, q, qd, qdd).flatten(-2) @ change
        force = rigid + moved + self.friction(q, qd, qdd, series=series)
        if self.residual is None:
            return force
        learned = self.residual(dof_positions(self.nominal, q), qd, qdd)
        drives = Drives.of(self.info.drives)
        return force + (learned if drives is None else drives.joint_forces(learned))

    def _model(self, *, series: bool) -> ReferenceModel:
        """The model for single states or for a series."""
        if series and self.memory is not None:
            return self.memory
        return ReferenceModel(self.phi, self.terms, self.numbers)

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        like: Any = None,
        file_format: str | None = None,
        mesh_path: Sequence[str | os.PathLike[str]] | None = None,
    ) -> str | None:
        """Write the fit into a folder: its numbers (fit.pt) and the robot.

        fit.pt is always written, first. The robot file is ``robot.urdf`` or ``robot.xml``. It is a copy of
        the file `like` with the identified numbers, or a new file if `like` has another format. Existing
        files of these names are replaced. Meshes and included files of MJCF are copied too, unless they exist
        already or lie outside of the folder of `like`; the new file then has their full paths.

        One `RobotFileWarning` names all that the robot file does not have, such as constant joint forces,
        rotor inertia in URDF, friction that differs between the dofs of a joint, or `missing_from_mechanism`.
        If the format cannot represent the robot at all, such as joints that follow several others, the
        warning says why, and there is no robot file.

        Args:
            folder: output folder; created if it does not exist.
            like: the file that the nominal robot was loaded from, or its text.
            file_format: "urdf" or "mjcf"; by default that of `like`, and URDF for SDF and new files.
            mesh_path: further trusted folders for MJCF, as in `torchsko.load`.

        Returns:
            The name of the robot file; None if there is none.

        Raises:
            FitError: when the folder cannot be created, or the format is unknown.
            RobotFileError: when the robot file cannot be written, or cannot be loaded from there.
        """
        from torchsko.identification.results.robot_file import robot_file, save_robot
        from torchsko.identification.results.serialization import write_fit

        folder = Path(folder)
        robot_file(like, file_format)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FitError(
                f"{folder} cannot be created: {error.strerror or error}.",
                "A fit is saved into a folder.",
                "Pass the path of a writable folder.",
            ) from error
        write_fit(self, folder / "fit.pt")
        return save_robot(self, folder, like, file_format, mesh_path)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        residual: nn.Module | None = None,
        *,
        robot: MechanismLike | None = None,
        mesh_path: Sequence[str | os.PathLike[str]] | None = None,
    ) -> Fit:
        """Load a fit that `save` wrote. No code in the file is executed.

        Args:
            folder: the folder of the fit.
            residual: a module of the same class, if the fit has a residual module of your own class.
            robot: the robot that was identified, in place of the robot file.
            mesh_path: further trusted folders of the robot file, as in `torchsko.load`.

        Raises:
            FitError: when the folder has no valid fit, or no robot file and `robot` is left out.
            RobotFileError: when the robot file cannot be read.
        """
        from torchsko.identification.results.serialization import load_fit

        return load_fit(Path(folder), residual, robot, mesh_path)

    def __str__(self) -> str:
        """The summary of the fit."""
        from torchsko.identification.results.summary import report

        return report(self)


def fitted_robot(
    nominal: Mechanism,
    phi: Tensor,
    terms: Sequence[Sequence[Term]],
    numbers: Sequence[Tensor],
    physical: bool,
) -> Mechanism:
    """The nominal robot with estimated joint terms, and inertias if they are physical."""
    changes: dict[str, Tensor] = {}
    if physical:
        changes |= zip(("mass", "com", "inertia"), unpack_inertias(phi), strict=True)
    damping, friction, offset, rotors = (
        _at_dofs(numbers, [[getattr(t, name) for t in some] for some in terms])
        for name in ("damping", "friction", "offset", "armature")
    )
    speeds = zip(terms, (x.tolist() for x in numbers), strict=True)
    speed = damping.new_tensor([_transition_speed(*row) for row in speeds])
    found = {
        "damping": damping.clamp_min(0),
        "friction": friction.clamp_min(0),
        "friction_speed": speed,
        "force_offset": offset,
    }
    # Friction of a coupled joint acts on the joint that it follows.
    changes |= {name: scatter_dofs(nominal, x) for name, x in found.items()}
    changes["armature"] = (nominal.armature + scatter_dofs(nominal, rotors)).clamp_min(0)
    return nominal.replace(
        **changes,
        has_losses=True,
        has_smooth_friction=bool(speed.any()),
        has_force_offset=bool(offset.any()),
        replaced=nominal.replaced,
    )


def _transition_speed(terms: Sequence[Term], numbers: Sequence[float]) -> float:
    """Transition speed of a joint's largest dry friction; 0 without dry friction."""
    laws = [(x, t.friction_speed) for t, x in zip(terms, numbers, strict=True) if t.friction]
    return max(laws, default=(0.0, 0.0))[1]


def _at_dofs(numbers: Sequence[Tensor], parts: Sequence[Sequence[float]]) -> Tensor:
    """Weighted sum of the coefficients of each dof, `[num_dof]`."""
    return torch.stack(
        [row @ row.new_tensor(part) for row, part in zip(numbers, parts, strict=True)]
    )
