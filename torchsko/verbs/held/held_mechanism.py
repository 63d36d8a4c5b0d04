"""A mechanism with bilateral constraints; see `torchsko.constrain`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from torchsko.errors import MechanismError, ShapeError
from torchsko.mechanism.dispatch import MechanismLike, as_mechanism
from torchsko.mechanism.file_data.file_metadata import Closure
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.state import check_state
from torchsko.mechanism.verb_docs import documented
from torchsko.verbs.held import held_derivatives, held_dynamics
from torchsko.verbs.held.held_dynamics import HeldConstraints
from torchsko.verbs.held.held_rows import HeldFrame, HeldRows
from torchsko.verbs.held.impulse_derivatives import impulse_derivatives
from torchsko.verbs.held.rank import are_redundant


@runtime_checkable
class FusesHeld(Protocol):
    """A mechanism whose verbs are kernels, which makes kernels of constrained dynamics too."""

    def fuse_held(self, held: HeldMechanism) -> HeldMechanism:
        """The constrained mechanism with kernels as methods."""
        ...


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "forward_dynamics": held_dynamics.forward_dynamics,
    "forward_dynamics_derivatives": held_derivatives.forward_dynamics_derivatives,
    "impulse": held_dynamics.impulse,
    "impulse_derivatives": impulse_derivatives,
    "jacobian": held_dynamics.jacobian,
    "project": held_dynamics.project,
    "nullspace": held_dynamics.nullspace,
    "constraint_forces": held_dynamics.constraint_forces,
}
"""Function of each method of `HeldMechanism`."""


@dataclass(frozen=True, eq=False)
class HeldMechanism:
    """A mechanism with bilateral constraints; made by `torchsko.constrain`.

    Arguments are those of the mechanism, with any batch dimensions. A mask ``active``,
    `[*batch, constraints]`, switches constraints on (1, True) and off (0, False) for each sample; all are
    active without it. Forces `[*batch, rows]` act on the mechanism, in the order of the constraints: for a
    `HeldFrame` in world axes at the frame's origin, moments [N m] before forces [N]; for a closure on its
    second frame, in world axes.

    Rows may be redundant, such as those of many corners of one sole. Then the forces are those of least norm.
    Configurations in which rows that are otherwise independent become dependent have no solution: results are
    not finite, or very large.

    Attributes:
        source: what the mechanism is read from at each call.
        constraints: the constraints.
    """

    source: MechanismLike
    constraints: HeldConstraints

    def mech(self) -> Mechanism:
        """The mechanism without the constraints."""
        return as_mechanism(self.source)

    @property
    def num_rows(self) -> int:
        """Number of rows of all constraints."""
        return self.constraints.rows.num_rows

    def __repr__(self) -> str:
        count = len(self.constraints.rows.constraints)
        return f"{type(self).__name__}({self.mech()!r}, {count} constraints, {self.num_rows} rows)"

    def _call(self, name: str, tensors: dict[str, Tensor | None], **options: float) -> Any:
        mech = self.mech()
        check_state(mech, **{k: x for k, x in tensors.items() if k != "active"})
        return FUNCTIONS[name](self.constraints, mech, **tensors, **options)

    @documented
    def forward_dynamics(
        self,
        q: Tensor,
        qd: Tensor,
        tau: Tensor,
        active: Tensor | None = None,
        f_ext: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Accelerations under the constraints, and the forces of the constraints.

        Returns:
            qdd `[*batch, num_dof]` [rad/s^2 or m/s^2] and forces `[*batch, rows]` [N m, N].

        Reference: Carpentier, Budhiraja, Mansard 2021.
        """
        return self._call(
            "forward_dynamics", {"q": q, "qd": qd, "tau": tau, "active": active, "f_ext": f_ext}
        )

    @documented
    def forward_dynamics_derivatives(
        self,
        q: Tensor,
        qd: Tensor,
        tau: Tensor,
        active: Tensor | None = None,
        f_ext: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Derivatives of `forward_dynamics` to tangent steps of q, to qd and to tau, in closed form.

        Returns:
            ``(qdd_q, qdd_qd, qdd_tau, f_q, f_qd, f_tau)``: derivatives of qdd,
            `[*batch, num_dof, num_dof]`, then of the forces, `[*batch, rows, num_dof]`. Dry friction has
            the derivative zero.

        Reference: R. Budhiraja, J. Carpentier, C. Mastalli, N. Mansard, *Differential dynamic programming
        for multi-phase rigid contact dynamics*, Humanoids 2018 (the KKT identity).
        """
        states = {"q": q, "qd": qd, "tau": tau, "active": active, "f_ext": f_ext}
        return self._call("forward_dynamics_derivatives", states)

    @documented
    def impulse(
        self, q: Tensor, qd: Tensor, restitution: float = 0.0, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Velocity after an impact with the constraints, such as the touchdown of a foot.

        Args:
            qd: velocity before the impact, `[*batch, num_dof]` [rad/s or m/s].
            restitution: G qd after the impact is minus this number times G qd before.

        Returns:
            The velocity after the impact `[*batch, num_dof]`, and impulses `[*batch, rows]` [N m s, N s].

        Reference: Featherstone 2008, Rigid Body Dynamics Algorithms, section 11.7.
        """
        states = {"q": q, "qd": qd, "active": active}
        return self._call("impulse", states, restitution=float(restitution))

    @documented
    def impulse_derivatives(
        self, q: Tensor, qd: Tensor, restitution: float = 0.0, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Derivatives of `impulse` to tangent steps of q and to qd, in closed form.

        Args:
            qd: see `impulse`.
            restitution: see `impulse`.

        Returns:
            ``(v_q, v_qd, f_q, f_qd)``: derivatives of the velocity after the impact,
            `[*batch, num_dof, num_dof]`, then of the impulses, `[*batch, rows, num_dof]`.

        Reference: R. Budhiraja, J. Carpentier, C. Mastalli, N. Mansard, *Differential dynamic programming
        for multi-phase rigid contact dynamics*, Humanoids 2018, section III-D.
        """
        states = {"q": q, "qd": qd, "active": active}
        return self._call("impulse_derivatives", states, restitution=float(restitution))

    @documented
    def jacobian(self, q: Tensor, active: Tensor | None = None) -> Tensor:
        """The Jacobian G of the rows: constraints allow velocities with G qd = 0.

        Returns:
            `[*batch, rows, num_dof]`; rows of constraints that are not active are zero.

        Reference: Featherstone 2008, Rigid Body Dynamics Algorithms, section 8.2.
        """
        return self._call("jacobian", {"q": q, "active": active})

    def forces_of(self, name: str, forces: Tensor) -> Tensor:
        """Entries of one constraint in the forces or impulses of all.

        Args:
            name: of a held frame, or of a closure.
            forces: of all constraints, `[*batch, rows]`.

        Returns:
            `[*batch, rows of the constraint]` [N m, N]; for a `HeldFrame` in world axes, moments first.

        Raises:
            MechanismError: when no constraint, or more than one, has this name.
            ShapeError: when the forces are not those of all rows.
        """
        if forces.shape[-1:] != (self.num_rows,):
            raise ShapeError(
                f"forces has shape {list(forces.shape)}.",
                f"The constraints have {self.num_rows} rows.",
                "Pass the forces that forward_dynamics or constraint_forces returns.",
            )
        return forces[..., self.constraints.rows.rows_of(name)]

    @documented
    def project(self, q: Tensor, active: Tensor | None = None) -> Tensor:
        """The configuration moved onto the constraints, by Newton steps that the mass matrix weighs.

        Constraints without a placement have no residual and move nothing.

        Returns:
            `[*batch, num_q]`.
        """
        return self._call("project", {"q": q, "active": active})

    @documented
    def nullspace(self, q: Tensor, active: Tensor | None = None) -> Tensor:
        """The projector N of velocities onto those that the constraints allow: G N = 0 and N N = N.

        It is orthogonal in the metric of the mass matrix, so that N* tau are the joint forces that produce no
        constraint forces at rest.

        Returns:
            `[*batch, num_dof, num_dof]`.

        Reference: Khatib 1987, A unified approach for motion and force control (dynamic consistency).
        """
        return self._call("nullspace", {"q": q, "active": active})

    @documented
    def constraint_forces(
        self,
        q: Tensor,
        qd: Tensor,
        qdd: Tensor,
        tau: Tensor,
        active: Tensor | None = None,
        f_ext: Tensor | None = None,
    ) -> Tensor:
        """Forces of the constraints in a given motion, from tau + J* f_ext + G* f = inverse dynamics.

        Returns:
            `[*batch, rows]`. If no forces of the constraints cause the motion, those that come nearest to it.
        """
        states = {"q": q, "qd": qd, "qdd": qdd, "tau": tau, "active": active, "f_ext": f_ext}
        return self._call("constraint_forces", states)


def constrain(
    mech: MechanismLike, constraints: Iterable[HeldFrame | Closure], *, stabilize: float = 0.0
) -> HeldMechanism:
    """A mechanism whose motion satisfies constraints: feet on the ground, held hands, cut loops.

    Args:
        mech: a mechanism, a layer (read at each call), or a fused mechanism (then the methods are kernels).
        constraints: `HeldFrame` objects and entries of ``mech.closures``.
        stabilize: rate k at which errors of the constraints decay [1/s], as (1 + k t) exp(-k t) (Baumgarte).

    Returns:
        An object with the constrained dynamics as methods. ``ts.fuse(held)`` makes them kernels.

    Raises:
        MechanismError: on an unknown frame or kind, constraints that hold no moving frame, or an invalid
            rate.

    References: J. Baumgarte, *Stabilization of constraints and integrals of motion in dynamical systems*,
    Computer Methods in Applied Mechanics and Engineering 1(1), 1972; Jain 2011, Part II, section 6.2.

    Example:
        >>> import torchsko as ts, torch
        >>> dog = ts.load(ts.robots.quadruped)
        >>> feet = [name for name in dog.frame_names if name.endswith("foot")]
        >>> held = ts.constrain(dog, [ts.HeldFrame(foot) for foot in feet])
        >>> q, qd = dog.middle(), torch.zeros(dog.num_dof).double()
        >>> qdd, forces = held.forward_dynamics(q, qd, torch.zeros_like(qd))
        >>> forces.shape
        torch.Size([12])
    """
    robot, chosen = as_mechanism(mech), tuple(constraints)
    if isinstance(stabilize, bool) or not isinstance(stabilize, Real) or not 0 <= stabilize < 1e6:
        raise MechanismError(
            f"stabilize={stabilize!r} is no rate.",
            "Errors of the constraints decay at this rate [1/s]; 0 leaves them.",
            "Pass 20.0, say.",
        )
    rows = HeldRows(robot, chosen)
    held = HeldMechanism(mech, HeldConstraints(rows, float(stabilize), are_redundant(robot, rows)))
    return mech.fuse_held(held) if isinstance(mech, FusesHeld) else held
