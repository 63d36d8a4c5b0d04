"""Numbers of a fit: the robot, standard errors, residuals and findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from torchsko.identification.diagnostics.findings import Finding
from torchsko.identification.friction import Term, TermInput
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
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.base_parameters import BaseParameters
from torchsko.verbs.dynamics import inverse_dynamics
from torchsko.verbs.regressors import inertial_parameters, torque_regressor


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
            `torchsko.identification.drive_gains.Constants`.
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
class FitResult:
    """Numbers of an identified robot; `Fit` adds tests and files.

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
    memory: MemoryModel | None = None
    masses: MassUncertainty | None = None

    @classmethod
    def of(
        cls, problem: RegressionProblem, solution: Solution, info: FitInfo,
        references: dict[str, ReferenceModel], information: ParameterUncertainty, left: Residuals,
        errors: dict[str, Tensor], findings: tuple[Finding, ...], 
        memory: MemoryModel | None = None, masses: MassUncertainty | None = None,
    ) -> Self:  # fmt: skip
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
            information.covariance, information.condition, errors, left, info, references, findings, memory,
            masses,
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
        """Predict joint forces: rigid robot and joint terms.

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
        return rigid + moved + self.friction(q, qd, qdd, series=series)

    def _model(self, *, series: bool) -> ReferenceModel:
        """The model for single states or for a series."""
        if series and self.memory is not None:
            return self.memory
        return ReferenceModel(self.phi, self.terms, self.numbers)


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
