"""Description of a tendon on joints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchsko.mechanism.file_data.actuator import UNLIMITED, Range, check_range
from torchsko.mechanism.file_data.solver_options import SOLIMP, SOLREF, Solimp, Solref


@dataclass(frozen=True)
class Tendon:
    """One tendon on joints.

    Attributes:
        name: of the tendon.
        joints: coefficients by the names of joints: length per coordinate [m/rad, or 1].
        stiffness: k [N/m or N m/rad].
        damping: d [N s/m or N m s/rad].
        relaxed: range of lengths without spring force [m or rad].
        limits: range of lengths [m or rad], a soft constraint of `torchsko.step`.
        friction: dry friction [N or N m], a soft constraint of `torchsko.step`.
        margin: distance at which limits become active [m or rad].
        limit_solref: reference parameters of the limits.
        limit_solimp: impedance parameters of the limits.
        friction_solref: reference parameters of dry friction.
        friction_solimp: impedance parameters of dry friction.
        invweight: inverse inertia of the length in the initial configuration [1/kg or 1/(kg m^2)]; None if it
            is computed from the mechanism.
        armature: inertia of the length [kg or kg m^2], in `torchsko.step`.
        higher_stiffness: quadratic and cubic coefficients of the spring [N/m^2, N/m^3; N m/rad^2, N m/rad^3].
        higher_damping: those of the damper, over speed [N s^2/m^2, N s^3/m^3; N m s^2/rad^2, N m s^3/rad^3].

    Raises:
        MechanismError: when the lower end of `relaxed` or `limits` exceeds the upper.
    """

    name: str
    joints: Mapping[str, float]
    stiffness: float = 0.0
    damping: float = 0.0
    relaxed: Range = (0.0, 0.0)
    limits: Range = UNLIMITED
    friction: float = 0.0
    margin: float = 0.0
    limit_solref: Solref = SOLREF
    limit_solimp: Solimp = SOLIMP
    friction_solref: Solref = SOLREF
    friction_solimp: Solimp = SOLIMP
    invweight: float | None = None
    armature: float = 0.0
    higher_stiffness: tuple[float, float] = (0.0, 0.0)
    higher_damping: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        for what in ("relaxed", "limits"):
            check_range(f"{what} of tendon {self.name!r}", getattr(self, what))

    @property
    def has_spring_or_damper(self) -> bool:
        """True if a coefficient of the spring or damper is not zero."""
        linear = (self.stiffness, self.damping)
        return any((*linear, *self.higher_stiffness, *self.higher_damping))
