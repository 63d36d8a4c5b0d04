"""Options and flags in new MJCF files."""

from __future__ import annotations

from torchsko.io.common.losses import Losses
from torchsko.io.mjcf.elements import element
from torchsko.io.xml.edits import words
from torchsko.mechanism.mechanism import Mechanism

UNSUPPORTED = {
    "friction_speed": "widths of smooth dry friction (friction_speed)",
    "force_offset": "constant joint forces (force_offset)",
}
"""Parameters without a counterpart in MuJoCo."""


def option_line(mech: Mechanism, losses: Losses) -> str:
    """The <option> element: gravity, the fluid, time step, integrator, cone and flags."""
    solver = mech.file_metadata.solver
    for name, what in UNSUPPORTED.items():
        if bool(getattr(mech, name).any()):
            losses.add(what, fields=(name,))
    if solver.end_of_step:
        losses.add("constraints at the end of the time step (end_of_step)")
    density, viscosity = mech.medium.tolist()
    values = {
        "gravity": words(mech.gravity.tolist()),
        "timestep": words([solver.timestep]),
        "integrator": solver.integrator,
        "cone": solver.cone,
        "impratio": words([solver.impratio]),
        "density": words([density]),
        "viscosity": words([viscosity]),
        "wind": words(mech.wind.tolist()),
    } | dict(solver.other_options)
    flags = dict.fromkeys(solver.disabled, "disable") | dict(solver.other_flags)
    for name in ("refsafe", "eulerdamp"):
        if not getattr(solver, name):
            flags[name] = "disable"
    return element("option", values, [element("flag", flags)] if flags else [])
