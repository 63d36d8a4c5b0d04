"""Summary of a fit as text."""

from __future__ import annotations

from collections.abc import Sequence

from torchsko.identification.diagnostics.findings import Finding, Severity
from torchsko.identification.results.error_table import error_table
from torchsko.identification.results.fit_result import FitResult
from torchsko.identification.results.robot_file import missing_from_mechanism
from torchsko.identification.results.scores import Scores

MAX_RELATIVE_ERROR = 0.5
"""Standard error over the estimate above which a base parameter counts as poorly identified."""

MAX_CONDITION = 1e7
"""Condition number above which rounding errors determine it."""


def report(fit: FitResult, scores: Scores | None = None) -> str:
    """Report of a fit: prediction errors, findings, numbers, and elements of the file without effect.

    Args:
        fit: the fit.
        scores: prediction errors on a log that the fit did not use.
    """
    sections = [header(fit), *results(fit, scores)]
    sections += [findings_section(title, fit.findings, level) for title, level in FINDINGS]
    sections += [*numbers(fit), unused_section(fit)]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


FINDINGS: tuple[tuple[str, Severity], ...] = (("Warnings", "warning"), ("Notes", "note"))
"""Titles and severities of the lists of findings."""


def results(fit: FitResult, scores: Scores | None) -> list[list[str]]:
    """Prediction errors by cross-validation, and on a log that the fit did not use."""
    unseen = [] if scores is None else str(scores).splitlines()
    return [prediction_section(fit), unseen]


def numbers(fit: FitResult) -> list[list[str]]:
    """Estimates with their standard errors, and the condition of the regression."""
    return [
        masses_section(fit),
        base_section(fit, well_identified=True),
        terms_section(fit),
        base_section(fit, well_identified=False),
        unobserved_section(fit),
        details_section(fit),
    ]


def header(fit: FitResult) -> list[str]:
    """Robot, method, and the number of identified base parameters."""
    info, count = fit.info, len(fit.base)
    origin = "chosen from the motion" if info.automatic_cutoff else "as given"
    weight = f", prior weight {info.prior_weight:.3g}" if info.prior_weight is not None else ""
    well = sum(well_identified(fit))
    return [
        f"{fit.mechanism.name}: method {info.method}{weight}, {info.equations} equations (filtered forces of "
        f"all joints), cut-off frequency {info.cutoff:.3g} Hz ({origin})",
        f"{well} of {count} base parameters are identified with a standard error below "
        f"{100 * MAX_RELATIVE_ERROR:.0f} %.",
    ]


def well_identified(fit: FitResult) -> list[bool]:
    """Flags of the base parameters that have a standard error below half of the estimate."""
    return (fit.deviation <= MAX_RELATIVE_ERROR * fit.value.abs()).tolist()


def findings_section(title: str, findings: Sequence[Finding], severity: Severity) -> list[str]:
    """Findings of one severity, with their codes."""
    lines = [f"- {x} [{x.code}]" for x in findings if x.severity == severity]
    return [f"{title}:", "", *lines] if lines else []


def prediction_section(fit: FitResult) -> list[str]:
    """Prediction errors of each dof by cross-validation."""
    relative = {name: fit.residuals.relative(x) for name, x in fit.errors.items()}
    title = (
        "Prediction error in time intervals that the fit did not use, divided by the standard deviation of "
        "the force:"
    )
    return [title, "", *error_table(fit.row_names, fit.errors, relative)]


def masses_section(fit: FitResult) -> list[str]:
    """Nominal and fitted masses of all bodies, and how far the log determines them."""
    if not fit.info.physical:
        return []
    names, old, new = (
        fit.mechanism.body_names,
        fit.nominal.mass.tolist(),
        fit.mechanism.mass.tolist(),
    )
    width = max(map(len, (*names, "sum")))
    title, cells = "Masses in kg: nominal, fitted", [""] * len(names)
    if (found := fit.masses) is not None:
        title += ", standard error, share that the log determines"
        pairs = zip(found.deviation.tolist(), found.determined.tolist(), strict=True)
        cells = [f" +-{error:9.2g}  {share:5.0%}" for error, share in pairs]
    rows = zip(names, old, new, cells, strict=True)
    lines = [f"{name.ljust(width)} {x:10.4g} {y:10.4g}{cell}" for name, x, y, cell in rows]
    total = f"{'sum'.ljust(width)} {sum(old):10.4g} {sum(new):10.4g}"
    return [f"{title}:", "", *lines, total]


def base_section(fit: FitResult, *, well_identified: bool) -> list[str]:
    """Base parameters that are well or poorly identified, with the estimates of least squares."""
    rows = zip(
        fit.base.names, fit.value.tolist(), fit.deviation.tolist(), fit.least_squares.tolist(),
        strict=True,
    )  # fmt: skip
    lines = [
        f"{x:11.4g} +-{error:9.2g}  ({other:11.4g})  {name}"
        for name, x, error, other in rows
        if (error <= MAX_RELATIVE_ERROR * abs(x)) == well_identified
    ]
    if well_identified:
        title = (
            "Identified base parameters in kg, kg m and kg m^2: estimate, standard error, (unweighted "
            "least squares), combination of inertial parameters:"
        )
    else:
        title = "Poorly identified base parameters (large standard error):"
    return [title, "", *lines] if lines else []


def unobserved_section(fit: FitResult) -> list[str]:
    """Inertial parameters on which no joint force of the robot depends."""
    return [f"No force depends on: {', '.join(fit.base.unseen)}"] if fit.base.unseen else []


def terms_section(fit: FitResult) -> list[str]:
    """Friction and other terms of each dof, without and with memory."""
    names = fit.row_names
    width = max(map(len, names))
    lines = ["Friction and other joint terms in SI units: coefficient, standard error:", ""]
    for model in (fit, fit.memory):
        if model is None:
            continue
        if model is not fit:
            lines += ["", "Model with memory, for inverse_dynamics(..., series=True):", ""]
        rows = zip(names, model.terms, model.numbers, model.deviations, strict=True)
        for name, terms, numbers, errors in rows:
            cells = ", ".join(
                f"{term.label} {x:.3g} +- {error:.1g}"
                for term, x, error in zip(terms, numbers.tolist(), errors.tolist(), strict=True)
            )
            lines.append(f"{name.ljust(width)}  {cells or 'none'}")
    if missing := missing_from_mechanism(fit):
        lines += ["", f"fit.mechanism does not have the {'; '.join(missing)}."]
    if fit.info.selects_terms:
        lines += [
            "",
            "Terms were selected by cross-validation. Standard errors are conditional on this selection.",
        ]
    return lines


def details_section(fit: FitResult) -> list[str]:
    """Condition number and autocorrelation of residuals."""
    condition = (
        f"{fit.condition:.3g}"
        if fit.condition < MAX_CONDITION
        else f"above {MAX_CONDITION:.0e}: some parameters are not identifiable"
    )
    times = ", ".join(f"{x:.2g}" for x in fit.residuals.autocorrelation_time.tolist())
    filter_time = f"{1 / (2 * fit.info.cutoff):.2g}"
    return [
        f"Condition number of the regressor: {condition}",
        f"Autocorrelation time of the residuals [s]: {times} (of the filter: {filter_time})",
    ]


def unused_section(fit: FitResult) -> list[str]:
    """Elements of the robot's file that the model does not have; those of one kind share a line."""
    groups: dict[tuple[str, str], list[str]] = {}
    for x in fit.nominal.unused:
        owner, tag, rest = x.element.partition("<")
        key = (f"{tag}{rest}" if tag else x.element, x.reason)
        groups.setdefault(key, []).append(owner.strip() if tag else "")
    lines = []
    for (element, reason), owners in groups.items():
        whose = owners[0] if len(owners) == 1 else f"{len(owners)} elements, such as {owners[0]}"
        lines.append(f"{element} ({whose}): {reason}" if whose else f"{element}: {reason}")
    return (
        ["Elements of the robot's file that the model does not have:", "", *lines] if lines else []
    )
