"""Check of a finished fit: masses that are far from the nominal ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsko.identification.diagnostics.context import FittedContext
from torchsko.identification.diagnostics.findings import Finding, finding

MAX_MASS_RATIO = 2.0
"""Largest ratio of a fitted mass to the nominal one, or of the nominal to the fitted one."""

MIN_DETERMINED = 0.5
"""Share of a mass from which on the log, rather than the prior, determines it."""


def changed_mass(context: FittedContext) -> Iterator[Finding]:
    """Fitted masses are within a factor of two of the nominal ones."""
    if not context.physical:
        return
    fitted, nominal = context.solution.phi[::10], context.nominal.mass
    ratio, found = fitted / nominal, context.masses
    far = (ratio > MAX_MASS_RATIO) | (ratio < 1 / MAX_MASS_RATIO)
    bodies = (far & (context.original.mass > 0)).nonzero().flatten().tolist()
    determined = [
        k for k in bodies if found is not None and float(found.determined[k]) >= MIN_DETERMINED
    ]
    if determined:
        yield finding(
            "changed_mass",
            f"Fitted masses are far from the nominal ones, and the log determines them: "
            f"{_listed(context, determined)}.",
            "Check the masses of the robot's file, payloads, and the unit of the forces (--unit, --gain).",
            joints=[context.nominal.body_names[k] for k in determined],
            reason="The forces of the log need these masses.",
        )
    weight = 100 * context.model.prior_weight
    if rest := [k for k in bodies if k not in determined]:
        yield finding(
            "changed_mass",
            "Fitted masses are far from the nominal ones, and the log does not determine them: "
            f"{_listed(context, rest)}.",
            f"Keep masses nearer to the nominal ones: --prior {weight:.3g} or prior={weight:.3g}.",
            joints=[context.nominal.body_names[k] for k in rest],
            reason="They make up for other errors of the model, such as inertias, friction or zeros.",
        )


def _listed(context: FittedContext, bodies: Sequence[int]) -> str:
    """Names, nominal and fitted masses of bodies."""
    texts = []
    for k in bodies:
        text = f"{context.nominal.body_names[k]} {float(context.nominal.mass[k]):.3g} to "
        text += f"{float(context.solution.phi[10 * k]):.3g}"
        if context.masses is not None:
            text += f" +- {float(context.masses.deviation[k]):.1g}"
        texts.append(f"{text} kg")
    return ", ".join(texts)
