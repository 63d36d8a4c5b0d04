"""Prediction errors of a fit on a log that it did not use."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchsko.errors import FitError
from torchsko.identification.drive_gains import with_forces
from torchsko.identification.logs.log import Log
from torchsko.identification.regression.accumulate import reread_sample
from torchsko.identification.regression.data_checks import add_base_forces
from torchsko.identification.regression.drives import Drives
from torchsko.identification.regression.normal_equations import RegressionProblem
from torchsko.identification.results.error_table import error_table
from torchsko.identification.results.fit_result import FitResult
from torchsko.identification.results.reference_models import ReferenceModel
from torchsko.identification.signals.filter_settings import design_filters
from torchsko.identification.signals.preprocess import check_columns
from torchsko.identification.signals.unwrap import unwrap_angles
from torchsko.identification.uncertainty.residuals import compute_residuals, relative_error


@dataclass(frozen=True, eq=False)
class Scores:
    """Prediction errors of a fit and of its reference models on one log.

    Attributes:
        log: name of the log.
        dofs: names of the dofs.
        errors: root mean square errors of filtered forces by model, `[num_dof]` [N m or N]: the nominal robot
            and least squares, both with the basic friction of the fitted log, and the method of the fit. Fits
            with memory have "with memory" as well.
        spread: standard deviations of the filtered forces, `[num_dof]` [N m or N].
    """

    log: str
    dofs: tuple[str, ...]
    errors: dict[str, Tensor]
    spread: Tensor

    @property
    def nrmse(self) -> dict[str, Tensor]:
        """Errors divided by the standard deviation of each force, `[num_dof]`; nan for constant forces."""
        return {name: relative_error(x, self.spread) for name, x in self.errors.items()}

    def __str__(self) -> str:
        """A table of the errors, with one row for each dof."""
        title = f"Prediction error on {self.log}, divided by the standard deviation of the force:"
        return "\n".join([title, "", *error_table(self.dofs, self.errors, self.nrmse)])


def score(fit: FitResult, log: Log) -> Scores:
    """Predict the forces of a log by the models of a fit; see `Fit.test`."""
    nominal = fit.nominal
    log = add_base_forces(nominal, log)
    check_columns(nominal, log)
    log, _ = unwrap_angles(log, nominal.coordinate_names)
    if log.current:
        if fit.info.constants is None:
            raise FitError(
                f"{log.name} has motor currents, and the fit has no torque constants.",
                "The fit was made from forces.",
                "Convert the currents to forces, or fit a log of currents.",
            )
        log = with_forces(log, fit.info.constants)
    settings = design_filters(log, fit.info.cutoff)
    method = fit.info.method
    models = {**fit.references, method: ReferenceModel(fit.phi, fit.terms, fit.numbers)}
    if fit.memory is not None:
        models["with memory"] = fit.memory
    terms = dict.fromkeys(x for model in models.values() for some in model.terms for x in some)
    drives = Drives.of(fit.info.drives)
    problem = RegressionProblem.of(nominal, tuple(terms), drives=drives)
    motions = reread_sample(problem, log, settings).motions
    if not motions:
        raise FitError(
            f"{log.name} is too short to test the fit.",
            f"The filter of the fit with {fit.info.cutoff:.3g} Hz needs {2 * settings.half_width:.3g} s "
            "without a gap.",
            "Pass a longer log.",
        )
    residuals = {
        name: compute_residuals(problem, motions, model.solution(problem))
        for name, model in models.items()
    }
    errors = {name: x.variance.sqrt() for name, x in residuals.items()}
    return Scores(log.name, fit.row_names, errors, residuals[method].spread)
