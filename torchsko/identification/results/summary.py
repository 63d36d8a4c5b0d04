"""A fit as a page of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from torchsko.identification.regression.nearest_physical import PHYSICAL_METHODS

if TYPE_CHECKING:
    from torchsko.identification.results.result import Fit

LOST = 0.5
"""Standard deviation over value beyond which a base parameter is not told by the data."""

UNTOLD = 1e7
"""Condition number from which on rounding alone may have made it."""


def page(fit: Fit) -> str:
    """What was found, how well, and what the data do not tell."""
    found, names = fit.found, fit.mechanism.dof_names
    how = "chosen by the data" if found.chosen else "as asked"
    # Others have none: they only share its weights of joints.
    prior = f"prior {found.prior_weight:.3g}, " if found.method in PHYSICAL_METHODS else ""
    lines = [
        f"{fit.mechanism.name}: {found.equations} filtered forces, cut-off {found.cutoff:.3g} Hz ({how})",
        f"method {found.method}, {prior}condition {_condition(fit.condition)}",
        *found.notes, "",
        "Error in stretches of time left out, over the spread of the force:", "",
    ]  # fmt: skip
    heads, over = list(fit.errors), {k: fit.residuals.relative(x) for k, x in fit.errors.items()}
    width = max(map(len, names))
    lines.append(" " * width + "".join(f"{head:>16}" for head in heads))
    for j, name in enumerate(names):
        parts = (_error(over[head][j], fit.errors[head][j]) for head in heads)
        lines.append(name.ljust(width) + "".join(parts))
    means = (f"{float(over[head].nanmean()):16.3f}" for head in heads)
    lines.append("mean".ljust(width) + "".join(means))
    if any("*" in line for line in lines[-len(names) - 1 : -1]):
        lines.append("* in N m or N, and not in the mean: this force is constant")
    lines += ["", "Forces besides the rigid robot's, in SI units:", ""]
    for name, terms, numbers, deviations in zip(
        names, fit.terms, fit.numbers, fit.deviations, strict=True
    ):
        rows = zip(terms, numbers.tolist(), deviations.tolist(), strict=True)
        told = ", ".join(f"{t.label} {x:.3g} +- {s:.1g}" for t, x, s in rows)
        lines.append(f"{name.ljust(width)}  {told or 'none'}")
    lines += [
        "", "Base parameters, sums of kg, kg m and kg m^2 (value, standard deviation, least squares):", ""
    ]  # fmt: skip
    for name, x, s, other in zip(
        fit.base.names,
        fit.value.tolist(),
        fit.deviation.tolist(),
        fit.least_squares.tolist(),
        strict=True,
    ):
        mark = "  not told by the data" if s > LOST * abs(x) else ""
        lines.append(f"{x:11.4g} +-{s:9.2g}  ({other:11.4g})  {name}{mark}")
    if fit.base.unseen:
        lines += ["", "No force depends on: " + ", ".join(fit.base.unseen)]
    if fit.nominal.unused:
        lines += ["", "In the robot's file, and not in the model:", *map(str, fit.nominal.unused)]
    lasting = fit.residuals.autocorrelation_time
    memory = f"{1 / (2 * found.cutoff):.2g}"
    told = ", ".join(f"{x:.2g}" for x in lasting.tolist())
    lines += ["", f"Errors last (s; the filter's own memory is {memory}): {told}"]
    return "\n".join(lines)


def _condition(x: float) -> str:
    """A condition number, as far as rounding lets one tell it: it is the root of that of a sum of squares."""
    return (
        f"{x:.3g}" if x < UNTOLD else f"above {UNTOLD:.0e}, since the data do not tell all numbers"
    )


def _error(over: Tensor, plain: Tensor) -> str:
    """An error over the spread of its force, or in N m or N, marked, where there is none.

    Of a force that nobody measured there is no error at all.
    """
    if bool(over.isnan()) and float(plain) == 0:
        return f"{'-':>16}"
    return f"{float(plain):15.3g}*" if bool(over.isnan()) else f"{float(over):16.3f}"
