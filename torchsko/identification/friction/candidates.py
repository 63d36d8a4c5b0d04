"""Terms that stepwise selection chooses from by default, and its initial set."""

from __future__ import annotations

from torchsko.identification.friction.coulomb import Asymmetric, Coulomb, Loaded, SmoothCoulomb
from torchsko.identification.friction.dahl import Dahl
from torchsko.identification.friction.sensor_terms import Delay, Offset, Periodic
from torchsko.identification.friction.spring import Spring
from torchsko.identification.friction.stribeck import Stribeck
from torchsko.identification.friction.term import Term
from torchsko.identification.friction.viscous import Turbulent, Viscous

TRANSITION_SPEEDS = (0.02, 0.05, 0.1, 0.2)
"""Transition speeds of smooth Coulomb friction [rad/s]."""

DEFLECTIONS = (0.003, 0.01, 0.03, 0.1)
"""Presliding distances of the Dahl model [rad]."""

CANDIDATE_TERMS: tuple[Term, ...] = (
    *(Offset(), Viscous(), Coulomb()),
    *(SmoothCoulomb(speed) for speed in TRANSITION_SPEEDS),
    *(Dahl(distance) for distance in DEFLECTIONS),
    *(Turbulent(), Stribeck(0.1), Stribeck(0.3)),
    *(Asymmetric(0.05), Loaded(0.05)),
    *(Spring(), Periodic(1.0, 0.0), Periodic(1.0, 0.25), Delay()),
)
"""Terms that stepwise selection chooses from."""

INITIAL_TERMS = (Offset(), Viscous(), SmoothCoulomb(0.05))
"""Terms of each joint at the start of stepwise selection."""
