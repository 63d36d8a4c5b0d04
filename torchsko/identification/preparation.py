"""What a fit begins with: a robot, a log made ready, what explains its forces, and what the log says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torchsko.identification.checkpoint import Checkpoint
from torchsko.identification.diagnostics.coupled_joints import followers_told
from torchsko.identification.diagnostics.fit_notes import (
    changes_told,
    enough,
    left_out,
    rate_lines,
    refuse_standing,
    standing,
)
from torchsko.identification.diagnostics.force_checks import (
    in_other_units,
    refuse_driving,
    refuse_other_forces,
)
from torchsko.identification.diagnostics.log_hypotheses import refuse_mistaken
from torchsko.identification.diagnostics.missing_forces import (
    unmeasured,
    unmeasured_lines,
    with_all_forces,
    without_unmeasured,
)
from torchsko.identification.diagnostics.undriven_joints import refuse_unfelt
from torchsko.identification.diagnostics.unit_checks import refuse_other_units
from torchsko.identification.estimators.drive_gains import (
    Constants,
    constants_told,
    torque_constants,
    with_forces,
)
from torchsko.identification.friction import Offset, Term
from torchsko.identification.joint_terms import terms_of
from torchsko.identification.logs.log import Log
from torchsko.identification.options import Asked
from torchsko.identification.regression.accumulate import (
    ResidualSample,
    compile_regressor,
    read_log,
    reread_sample,
)
from torchsko.identification.regression.nearest_physical import nearest_physical
from torchsko.identification.regression.normal_equations import NormalEquations, RegressionProblem
from torchsko.identification.regression.rigid_model import without_losses
from torchsko.identification.selection.torque_ripple import find_ripple
from torchsko.identification.signals.cleaning import LogDefects
from torchsko.identification.signals.filter_settings import (
    FilterSettings,
    design_filters,
    sampling_rate,
)
from torchsko.identification.signals.preprocess import check_columns
from torchsko.identification.signals.unwrap import unwrap_angles
from torchsko.mechanism.mechanism import Mechanism

Say = Callable[[str, float], None]


class Known(NamedTuple):
    """What was read of a log: normal equations, what is wrong in it, motions to look at residuals in."""

    normal: NormalEquations
    faults: LogDefects
    seen: ResidualSample


@dataclass(frozen=True, eq=False)
class Task:
    """A robot and a log, as a fit takes them.

    Attributes:
        nominal: the robot, with inertias that bodies can have.
        log: of forces.
        settings: how it is filtered.
        constants: torque constants, of a log of currents.
        problem: what explains forces; waves that the log shows are among its terms.
        named: places of the terms that were asked for, of each dof.
        allowed: terms to choose from, of each dof.
        blank: dofs whose force nobody measured.
        changes: lines about what was changed in the robot and in the log.
    """

    nominal: Mechanism
    log: Log
    settings: FilterSettings
    constants: Constants | None
    problem: RegressionProblem
    named: Mapping[int, tuple[int, ...]]
    allowed: Mapping[int, tuple[Term, ...]]
    blank: Sequence[int]
    changes: tuple[str, ...]

    @classmethod
    def of(cls, mech: Mechanism, log: Log, asked: Asked, say: Say) -> Task:
        """Make a robot and a log ready.

        Raises:
            FitError: a log that is not the robot's, or in other units; terms that cannot be.
        """
        nominal, changed = nearest_physical(mech)
        terms, named = terms_of(nominal, asked.learn, asked.library, asked.method)
        say("reading the log", 0.0)
        log = with_all_forces(nominal, log)
        check_columns(nominal, log)
        log, wrapped = unwrap_angles(log, nominal.coordinate_names)
        log, settings, constants = made_ready(nominal, log, asked.cutoff)
        dofs = range(nominal.num_dof)
        problem = RegressionProblem.of(nominal, terms, asked.regressor, named)
        waves = find_ripple(problem, log, settings, [j for j in dofs if j not in named])
        besides = {j: [term for x in some for term in x.terms] for j, some in waves.items()}
        new = (term for some in besides.values() for term in some)
        problem = replace(problem, terms=tuple(dict.fromkeys([*terms, *new])))
        if asked.regressor is None:
            problem = compile_regressor(problem, log, settings)
        allowed = {j: (*asked.library, *besides.get(j, ())) for j in dofs}
        changes = (*changes_told(mech, changed), *left_out(nominal), *wrapped)
        return cls(
            nominal, log, settings, constants, problem, named, allowed, unmeasured(nominal, log),
            changes,
        )  # fmt: skip

    def checkpoint(self, asked: Asked) -> Checkpoint:
        """Where what is done of this fit is kept."""
        return Checkpoint.of(
            asked.checkpoint, self.problem, self.log, self.settings, self.named, asked.method,
            asked.prior, asked.folds, asked.window, asked.library,
        )  # fmt: skip

    def standing(self, known: Known) -> list[int]:
        """Dofs that stood still, where no terms were asked for."""
        return [j for j in standing(known.normal.pooled, self.problem.terms) if j not in self.named]

    def given(self, known: Known) -> dict[int, tuple[int, ...]]:
        """Places of the terms of dofs for which none are chosen: what stood still has an offset."""
        still = self.standing(known)
        return {j: (self.problem.terms.index(Offset()),) for j in still} | dict(self.named)

    def faults(self, known: Known) -> LogDefects:
        """What is wrong in the log, less what nobody measured."""
        return without_unmeasured(self.nominal, known.faults, self.blank)

    def lines(self, known: Known) -> list[str]:
        """Notes on the robot and the log, before anything is chosen."""
        notes = [*self.changes]
        if still := self.standing(known):
            names = ", ".join(self.nominal.dof_names[j] for j in still)
            notes.append(f"stood still, so that no friction is chosen there: {names}")
        if self.constants is not None:
            notes.append(constants_told(self.nominal, self.constants))
        notes += unmeasured_lines(self.nominal, self.blank)
        return [
            *notes,
            *rate_lines(self.settings),
            *in_other_units(self.problem, self.log, known.normal),
        ]


def made_ready(
    mech: Mechanism, log: Log, cutoff: float | None
) -> tuple[Log, FilterSettings, Constants | None]:
    """A log of forces, how it is filtered, and the torque constants of a log of currents."""
    refuse_other_units(mech, log, sampling_rate(log))
    settings = design_filters(log, cutoff)
    if not log.current:
        return log, settings, None
    constants = torque_constants(mech, log, settings)
    log = with_forces(log, constants.value)
    return log, design_filters(log, cutoff), constants


def known_of(task: Task, state: Mapping[str, Any], folds: int, kept: Checkpoint, say: Say) -> Known:
    """What a log says: of a run that was stopped, or read now."""
    problem, log, settings = task.problem, task.log, task.settings
    if state:
        normal = NormalEquations(state["sums"], state["count"], len(problem.base))
        return Known(normal, LogDefects(**state["faults"]), reread_sample(problem, log, settings))
    known = Known(
        *read_log(problem, log, settings, folds, lambda part: say("reading the log", 0.2 * part))
    )
    enough(log, problem.mech, known.normal, settings)
    kept.write(known.normal, known.faults)
    return known


def checked(task: Task, known: Known) -> list[str]:
    """Lines of what a log holds of joints that follow others, once it is this robot's.

    Raises:
        FitError: a log of another robot, of other joints' forces, with forces that nobody felt, or in which
            nothing moves; says what there is in it that the robot cannot have.
    """
    problem, log, motions = task.problem, task.log, known.seen.motions
    refuse_standing(problem, log, task.settings, known.normal.pooled)
    whole = without_losses(task.nominal)  # with all its rotors
    refuse_unfelt(whole, log, motions)
    followed = followers_told(whole, problem, log, task.settings, motions)
    refuse_other_forces(problem, log, known.normal)
    refuse_mistaken(replace(problem, mech=whole), log, motions, task.named)
    refuse_driving(problem, log, known.normal)
    return followed
