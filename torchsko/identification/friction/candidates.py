"""Terms that a fit chooses from, and where the choice begins."""

from __future__ import annotations

from torchsko.identification.friction import (
    Asymmetric,
    Coulomb,
    Dahl,
    Delay,
    Loaded,
    Offset,
    Periodic,
    SmoothCoulomb,
    Spring,
    Stribeck,
    Term,
    Turbulent,
    Viscous,
)

SPEEDS = (0.02, 0.05, 0.1, 0.2)
"""Of smooth dry friction [rad/s]."""

DISTANCES = (0.003, 0.01, 0.03, 0.1)
"""Of dry friction with memory [rad]."""

LIBRARY: tuple[Term, ...] = (
    *(Offset(), Viscous(), Coulomb()),
    *(SmoothCoulomb(speed) for speed in SPEEDS),
    *(Dahl(distance) for distance in DISTANCES),
    *(Turbulent(), Stribeck(0.1), Stribeck(0.3)),
    *(Asymmetric(0.05), Loaded(0.05)),
    *(Spring(), Periodic(1.0, 0.0), Periodic(1.0, 0.25), Delay()),
)
"""Terms that a fit chooses from."""

USUAL = (Offset(), Viscous(), SmoothCoulomb(0.05))
"""Where the choice begins."""
