"""Summary of a fit as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from torchsko.identification.diagnostics.findings import Finding, Severity

if TYPE_CHECKING:
    from torchsko.identification.results.result import Fit

MAX_RELATIVE_ERROR = 0.5
"""Standard error over the estimate above which a base parameter counts as poorly identified."""

MAX_CONDITION = 1e7
"""Condition number above which rounding errors determine it."""


def summary(fit: Fit) -> str:
    """Report of a fit: warnings, results, their uncertainty, and notes."""
    sections = [
        header(fit),
        findings_section("Warnings", fit.findings, "warning"),
        prediction_section(fit),
        base_section(fit, well_identified=True),
        terms_section(fit),
        base_section(fit, well_identified=False),
        findings_section("Notes", fit.findings, "note"),
        details_section(fit),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def header(fit: Fit) -> list[str]:
    """Robot, method, and the number of identified base parameters."""
    info, count = fit.info, len(fit.base)
    origin = "chosen from the motion" if info.automatic_cutoff else "as given"
    weight = f", prior weight {info.prior_weight:.3g}" if info.prior_weight is not None else ""
    well = sum(well_identified(fit))
    return [
        f"{fit.mechanism.name}: method {info.method}{weight}, {info.equations} filtered forces, cut-off "
        f"frequency {info.cutoff:.3g} Hz ({origin})",
        f"{well} of {count} base parameters are identified with a standard error below "
        f"{100 * MAX_RELATIVE_ERROR:.0f} %.",
    ]


def well_identified(fit: Fit) -> list[bool]:
    """Flags of the base parameters that have a standard error below half of the estimate."""
    return (fit.deviation <= MAX_RELATIVE_ERROR * fit.value.abs()).tolist()


def findings_section(title: str, findings: Sequence[Finding], severity: Severity) -> list[str]:
    """Findings of one severity, with their codes."""
    lines = [f"- {x} [{x.code}]" for x in findings if x.severity == severity]
    return [f"{title}:", "", *lines] if lines else []


def prediction_section(fit: Fit) -> list[str]:
    """Prediction errors of each dof by cross-validation."""
    names, heads = fit.mechanism.dof_names, list(fit.errors)
    relative = {name: fit.residuals.relative(x) for name, x in fit.errors.items()}
    width = max(map(len, names))
    lines = [
        "Prediction error in time intervals that the fit did not use, divided by the standard deviation of "
        "the force:",
        "",
        " " * width + "".join(f"{head:>16}" for head in heads),
    ]
    for j, name in enumerate(names):
        cells = (_error(relative[head][j], fit.errors[head][j]) for head in heads)
        lines.append(name.ljust(width) + "".join(cells))
    absolute = any("*" in line for line in lines[3:])
    means = (f"{float(relative[head].nanmean()):16.3f}" for head in heads)
    lines.append("mean".ljust(width) + "".join(means))
    if absolute:
        lines.append("* constant force: error in N m or N, not in the mean")
    return lines


def base_section(fit: Fit, *, well_identified: bool) -> list[str]:
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
            "Identified base parameters in kg, kg m and kg m^2: estimate, standard error, (ordinary "
            "least squares), combination of inertial parameters:"
        )
    else:
        title = "Poorly identified base parameters (large standard error):"
        if fit.base.unseen:
            lines += ["", "No force depends on: " + ", ".join(fit.base.unseen)]
    return [title, "", *lines] if lines else []


def terms_section(fit: Fit) -> list[str]:
    """Friction and other terms of each dof."""
    names = fit.mechanism.dof_names
    width = max(map(len, names))
    lines = ["Friction and other joint terms in SI units: coefficient, standard error:", ""]
    for name, terms, numbers, errors in zip(
        names, fit.terms, fit.numbers, fit.deviations, strict=True
    ):
        rows = zip(terms, numbers.tolist(), errors.tolist(), strict=True)
        cells = ", ".join(f"{term.label} {x:.3g} +- {error:.1g}" for term, x, error in rows)
        lines.append(f"{name.ljust(width)}  {cells or 'none'}")
    return lines


def details_section(fit: Fit) -> list[str]:
    """Condition number, autocorrelation of residuals, and unsupported elements of the robot's file."""
    condition = (
        f"{fit.condition:.3g}"
        if fit.condition < MAX_CONDITION
        else f"above {MAX_CONDITION:.0e}: some parameters are not identifiable"
    )
    times = ", ".join(f"{x:.2g}" for x in fit.residuals.autocorrelation_time.tolist())
    filter_time = f"{1 / (2 * fit.info.cutoff):.2g}"
    lines = [
        f"Condition number of the regressor: {condition}",
        f"Autocorrelation time of the residuals [s]: {times} (of the filter: {filter_time})",
    ]
    if fit.nominal.unused:
        lines += ["", "Elements of the robot's file that the model does not have:"]
        lines += map(str, fit.nominal.unused)
    return lines


def _error(relative: Tensor, absolute: Tensor) -> str:
    """A relative error; an absolute one with a mark if the force is constant, "-" if it was not measured."""
    if bool(relative.isnan()) and float(absolute) == 0:
        return f"{'-':>16}"
    if bool(relative.isnan()):
        return f"{float(absolute):15.3g}*"
    return f"{float(relative):16.3f}"
