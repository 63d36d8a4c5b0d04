"""Parameters of MuJoCo's soft constraints that belong to a whole model, its dofs and its coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

SOLREF = (0.02, 1.0)
"""MuJoCo's default reference parameters: time constant [s] and damping ratio."""

SOLIMP = (0.9, 0.95, 0.001, 0.5, 2.0)
"""MuJoCo's default impedance parameters."""

Solref = tuple[float, ...]
Solimp = tuple[float, ...]


@dataclass(frozen=True)
class SolverOptions:
    """Parameters of the constraint solver and of the integrator of a model, with MuJoCo's names.

    Per-dof and per-coordinate tuples refer to all joints of the tree; empty tuples stand for the defaults.

    Attributes:
        timestep: time step [s].
        integrator: "Euler", "RK4", "implicit", "implicitfast" or "discrete".
        cone: "elliptic" or "pyramidal" friction cones.
        impratio: ratio of the impedances of friction and normal force of elliptic cones.
        refsafe: whether time constants are at least two time steps.
        eulerdamp: whether Euler takes damping of joints implicitly.
        end_of_step: whether constraints act at the end of the time step, as under "discrete".
        disabled: names of the disabled constraints: "contact", "limit", "frictionloss", "equality"; with
            "filterparent", a body may touch its parent.
        limit_solref: reference parameters of position limits, by coordinate.
        limit_solimp: impedance parameters of position limits, by coordinate.
        limit_margin: distance at which limits become active, by coordinate [rad or m].
        limit_angle: largest rotation of ball joints, by coordinate [rad].
        limit_range: limits of the joints of the file, by coordinate, if joints follow others; those of a
            mechanism are combined with the limits of its followers [rad or m].
        friction_solref: reference parameters of dry friction, by dof.
        friction_solimp: impedance parameters of dry friction, by dof.
        dof_invweight: inverse inertia of each dof in the initial configuration [1/kg or 1/(kg m^2)]; empty if
            it is computed from the mechanism.
        other_options: MuJoCo's names and values of options without effect here, such as its iterations.
        other_flags: MuJoCo's flags without effect here, each with "enable" or "disable".
    """

    timestep: float = 0.002
    integrator: str = "Euler"
    cone: str = "pyramidal"
    impratio: float = 1.0
    refsafe: bool = True
    eulerdamp: bool = True
    end_of_step: bool = False
    disabled: tuple[str, ...] = ()
    limit_solref: tuple[Solref, ...] = ()
    limit_solimp: tuple[Solimp, ...] = ()
    limit_margin: tuple[float, ...] = ()
    limit_angle: tuple[float, ...] = ()
    limit_range: tuple[tuple[float, float], ...] = ()
    friction_solref: tuple[Solref, ...] = ()
    friction_solimp: tuple[Solimp, ...] = ()
    dof_invweight: tuple[float, ...] = ()
    other_options: tuple[tuple[str, str], ...] = ()
    other_flags: tuple[tuple[str, str], ...] = ()

    PER_COORDINATE: ClassVar = (
        "limit_solref",
        "limit_solimp",
        "limit_margin",
        "limit_angle",
        "limit_range",
    )
    PER_DOF: ClassVar = ("friction_solref", "friction_solimp")
    PER_JOINT: ClassVar = (*PER_COORDINATE, *PER_DOF, "dof_invweight")

    @property
    def of_file(self) -> bool:
        """True if a file specified them; other robots have the defaults."""
        return self != SolverOptions()

    def select(self, coordinates: Sequence[int], dofs: Sequence[int]) -> SolverOptions:
        """Parameters of the joints that remain when others are locked, without inverse inertias.

        Args:
            coordinates: indices of the remaining coordinates.
            dofs: indices of the remaining dofs.
        """
        indices = dict.fromkeys(self.PER_COORDINATE, coordinates)
        indices |= dict.fromkeys(self.PER_DOF, dofs)
        chosen = {
            name: tuple(getattr(self, name)[k] for k in row) if getattr(self, name) else ()
            for name, row in indices.items()
        }
        return replace(self, **chosen, dof_invweight=())

    def with_all_joints(self, num_q: int, num_dof: int) -> SolverOptions:
        """These options with the defaults written out, for numbers of coordinates and of dofs."""
        defaults: dict[str, tuple] = {
            "limit_solref": (SOLREF,) * num_q,
            "limit_solimp": (SOLIMP,) * num_q,
            "limit_margin": (0.0,) * num_q,
            "limit_angle": (math.inf,) * num_q,
            "friction_solref": (SOLREF,) * num_dof,
            "friction_solimp": (SOLIMP,) * num_dof,
        }
        found = {name: getattr(self, name) or value for name, value in defaults.items()}
        return replace(self, **found)
