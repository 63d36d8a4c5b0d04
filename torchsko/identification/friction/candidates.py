"""Default terms of a joint, and further terms that selection chooses from."""

from __future__ import annotations

from torchsko.identification.friction.coulomb import Asymmetric, Coulomb, SmoothCoulomb
from torchsko.identification.friction.dahl import Dahl
from torchsko.identification.friction.sensor_terms import Offset, RotorInertia
from torchsko.identification.friction.stribeck import Stribeck
from torchsko.identification.friction.term import Term
from torchsko.identification.friction.viscous import Viscous

DEFAULT_TERMS = (Offset(), Viscous(), SmoothCoulomb(0.05), RotorInertia())
"""Terms with which selection starts at every joint: those of a geared drive with a torque offset."""

TRANSITION_SPEEDS = (0.02, 0.1, 0.2)
"""Transition speeds of smooth Coulomb friction besides the default [rad/s]."""

DEFLECTIONS = (0.003, 0.01, 0.03, 0.1)
"""Presliding distances of the Dahl model [rad]."""

CANDIDATE_TERMS: tuple[Term, ...] = (
    *DEFAULT_TERMS,
    *(Coulomb(), *(SmoothCoulomb(speed) for speed in TRANSITION_SPEEDS)),
    *(Stribeck(0.1), Stribeck(0.3), Asymmetric(0.05)),
    *(Dahl(distance) for distance in DEFLECTIONS),
)
"""Terms that selection chooses from; see `torchsko.identification.selection.forward_selection`.

They are bounded functions of velocity, whose errors stay bounded at states outside of the log. `Spring`,
`Periodic`, `Turbulent`, `Loaded` and `Delay` are not among them: on logs of a few seconds they replace
hysteresis and errors of the inertias, predict left-out intervals well, and are wrong at other positions and
speeds. Add them for joints that have such a force.
"""
