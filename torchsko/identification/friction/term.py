"""Base class of joint force terms, each linear in one coefficient."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real
from typing import ClassVar

from torch import Tensor

from torchsko.errors import FitError


@dataclass(frozen=True, eq=False)
class TermInput:
    """Joint states, and other signals, that the basis function of a term may depend on.

    Attributes:
        q: positions, `[*batch, samples, num_dof]` [rad or m].
        qd: velocities, `[*batch, samples, num_dof]` [rad/s or m/s].
        qdd: accelerations, `[*batch, samples, num_dof]` [rad/s^2 or m/s^2].
        load: joint forces of the nominal rigid robot, `[*batch, samples, num_dof]` [N m or N].
        force_rate: time derivative of the measured forces, `[*batch, samples, num_dof]`; None for prediction.
        ordered: whether `samples` is a time axis; if not, terms with hysteresis use their steady-state value.
        step: time step [s] over which discontinuous terms are averaged; 0 for the value at the sample.
    """

    q: Tensor
    qd: Tensor
    qdd: Tensor
    load: Tensor
    force_rate: Tensor | None = None
    ordered: bool = True
    step: float = 0.0


@dataclass(frozen=True)
class Term:
    """A joint force: a coefficient, found by the fit, times a basis function of the motion.

    The terms of a joint add up, and each joint may have other terms. A new term is a frozen dataclass derived
    from `Term` that defines `basis`. Its fields, called shapes, are parameters of the basis function that the
    fit does not change. `term_classes` finds the class by name; selection considers it if it is
    among the candidate terms of `torchsko.identification.identify`.

    Attributes:
        nonnegative: whether the coefficient cannot be negative, as for friction, inertia and stiffness.
        unit: of the coefficient, for a revolute joint.
        damping: contribution of a unit coefficient to `Mechanism.damping`.
        friction: contribution of a unit coefficient to `Mechanism.friction` (dry friction).
        offset: contribution of a unit coefficient to `Mechanism.force_offset`.
        armature: contribution of a unit coefficient to `Mechanism.armature`.
        sensor_scale: relative error of measured positions that a unit coefficient stands for.
        continuous: whether the force is a continuous function of the joint's position and velocity, so that
            forward dynamics can evaluate it.
        linear: whether the basis is constant or linear in position, velocity and acceleration. Filtering the
            states then filters the basis; other terms are filtered once more, as the measured forces were.
        positive_shapes: names of the shapes that must be positive. All shapes are finite.
        nonnegative_shapes: names of the shapes that must be positive or zero.
        memory: whether the force depends on the past motion. `memoryless` is then the term that replaces it
            in the model for single states.
        zero_reason: explains in the report why a nonnegative coefficient that came out negative was set to 0.
        report_note: remark in the report for joints with this term.
    """

    nonnegative: ClassVar[bool] = False
    unit: ClassVar[str] = "N m"
    damping: ClassVar[float] = 0.0
    friction: ClassVar[float] = 0.0
    offset: ClassVar[float] = 0.0
    armature: ClassVar[float] = 0.0
    sensor_scale: ClassVar[float] = 0.0
    continuous: ClassVar[bool] = True
    linear: ClassVar[bool] = False
    positive_shapes: ClassVar[tuple[str, ...]] = ()
    nonnegative_shapes: ClassVar[tuple[str, ...]] = ()
    memory: ClassVar[bool] = False
    zero_reason: ClassVar[str] = "friction cannot drive a joint"
    report_note: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            x = float(value) if isinstance(value, Real) else math.nan
            positive, nonnegative = (
                f.name in self.positive_shapes,
                f.name in self.nonnegative_shapes,
            )
            if math.isfinite(x) and (
                x > 0 or not (positive or nonnegative) or (nonnegative and x == 0)
            ):
                continue
            required = (
                "positive" if positive else "positive or 0" if nonnegative else "a finite number"
            )
            raise FitError(
                f"{f.name} of {type(self).__name__} is {value!r}.",
                f"This parameter of the basis function must be {required}.",
                "Pass a valid number, or leave it out to use the default.",
            )

    def basis(self, motion: TermInput) -> Tensor:
        """Evaluate the basis function, `[*batch, samples, num_dof]`."""
        raise NotImplementedError

    @property
    def friction_speed(self) -> float:
        """Width of the transition of dry friction [rad/s or m/s]; 0 for a jump at rest."""
        return 0.0

    @property
    def memoryless(self) -> Term:
        """The term with the same force in steady state, and no memory."""
        return self

    @property
    def label(self) -> str:
        """Name and shapes, for reports."""
        shapes = ", ".join(f"{f.name}={getattr(self, f.name):g}" for f in fields(self))
        return type(self).__name__ + (f"({shapes})" if shapes else "")


def term_classes() -> dict[str, type[Term]]:
    """Find all term classes by name: those of this package, and subclasses of `Term` defined elsewhere."""
    found: dict[str, type[Term]] = {}
    queue: list[type[Term]] = [Term]
    while queue:
        for kind in queue.pop(0).__subclasses__():
            found.setdefault(kind.__name__, kind)
            queue.append(kind)
    return found
