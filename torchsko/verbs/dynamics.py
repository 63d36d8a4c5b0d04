"""Dynamics of a mechanism: each verb is a short composition of `assemble` and an algorithm.

Conventions: SI units and radians; any leading batch dimensions, broadcast together, on states and on
mechanism parameters; ``tau = M qdd + bias(q, qd) - sum J* f_ext``, where the bias holds Coriolis,
centrifugal, gravity and passive joint forces (damping, friction, springs), and M the armature.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchsko import algorithms
from torchsko.bridge.assemble import coupled, model_at
from torchsko.bridge.kinematics import Kinematics
from torchsko.bridge.level_free import assemble_level_free
from torchsko.bridge.singular_hinges import undefined
from torchsko.errors import MechanismError, ShapeError
from torchsko.implicit.equation import implicit, is_compiled_or_traced
from torchsko.mechanism.dispatch import verb
from torchsko.mechanism.mechanism import Mechanism
from torchsko.mechanism.validation import check_names
from torchsko.verbs.mechanism_inputs import fixed_fields, parameters_of, split_mechanism
from torchsko.verbs.parallel import Connectivity, parallel_inverse_dynamics
from torchsko.verbs.passive_forces import passive_forces

INVERSE = {
    "newton_euler": algorithms.inverse_dynamics,
    "composite": algorithms.composite_inverse_dynamics,
}
"""Methods of inverse dynamics, each a function of a model and accelerations."""


@verb(eager_options=("method", "parents"))
def inverse_dynamics(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    qdd: Tensor,
    f_ext: Tensor | None = None,
    *,
    method: str = "newton_euler",
    parents: Tensor | None = None,
) -> Tensor:
    """Joint forces that produce given accelerations.

    Args:
        method: "newton_euler" (two sweeps), "composite" (composite-body inertias) or "parallel"
            (one frame, in which every sweep is one product with the ancestor mask); equal to rounding.
        parents: for "parallel" only: parent of each body in place of that of the mechanism, -1 for
            the inertial frame, int64 `[*batch, num_bodies]`; may differ between samples. Joint
            placements (``mech.replace(joint_position=...)``) are relative to that body. No value is
            read: a cycle gives nan for its sample.

    Returns:
        tau, `[*batch, num_dof]` [N m or N].

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism, or the method is unknown or takes
            no parents.

    Reference: Jain 2011, Part II, Algorithm 3.1; Isobe and Yagi (undated), General-purpose expression,
    Eq. 2 and Fig. 6.

    Example:
        >>> import torchsko as ts, torch
        >>> arm = ts.load(ts.robots.panda)
        >>> q, qd = arm.random_state(5)
        >>> ts.inverse_dynamics(arm, q, qd, torch.zeros_like(qd)).shape
        torch.Size([5, 7])
    """
    state = Kinematics.of(mech, q, qd)
    passive = passive_forces(state)
    if method == "parallel":
        connectivity = _connectivity(mech, parents)
        tau = parallel_inverse_dynamics(state, qdd, f_ext, connectivity)
        return state.independent_forces(tau) + passive
    if parents is not None:
        raise ShapeError(
            f"parents were given, but method={method!r} sweeps over the mechanism's own tree.",
            "Only the ancestor mask of the parallel method can be computed from a tensor.",
            'Pass method="parallel" as well.',
        )
    tau = _method(INVERSE, method, "parallel")(model_at(state, f_ext), qdd)
    return tau + passive


def _connectivity(mech: Mechanism, parents: Tensor | None) -> Connectivity:
    if parents is None:
        return Connectivity.of(mech)
    if parents.ndim < 1 or parents.shape[-1] != mech.num_bodies or parents.dtype != torch.int64:
        raise ShapeError(
            f"parents has shape {list(parents.shape)} and dtype {parents.dtype}.",
            f"{mech.name!r} has {mech.num_bodies} bodies, each with one parent, -1 for the inertial "
            f"frame.",
            f"Pass an int64 tensor of shape [*batch, {mech.num_bodies}].",
        )
    return Connectivity.from_parents(mech, parents)


@verb(eager_options=("method",))
def forward_dynamics(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    tau: Tensor,
    f_ext: Tensor | None = None,
    *,
    method: str = "articulated",
) -> Tensor:
    """Accelerations that joint forces produce.

    The default is "articulated" for every robot. On a CPU the mass matrix saves at most a fifth or so
    up to 4 dofs, nothing at 7, and loses from 16 on: three times slower at 64 dofs and batch 1024
    (measured by ``benchmarks/forward_methods.py``, batches 1, 64 and 1024). "scan" pays where operations
    wait for one another: for single samples of chains of 64 links and more it is three times faster
    on a CPU, and in float32 more accurate; it does more work and loses on batches
    (``benchmarks/log_depth.py``).

    Args:
        method: "articulated", the articulated-body sweeps, O(N), or "composite", the mass matrix and
            its Cholesky factor, or "scan", the articulated-body recursion in O(log depth) operations,
            for long chains, its inertias composed in float64 whatever the mechanism's type; equal.

    Returns:
        qdd, `[*batch, num_dof]` [rad/s^2 or m/s^2].

    Raises:
        ShapeError: when a shape or dtype does not fit the mechanism, or the method is unknown.
        MechanismError: when a joint's hinge inertia vanishes, or, by "scan", when a joint's own body does
            not resist it; names the joints.

    Reference: Jain 2011, Part II, Algorithm 6.1.
    """
    refuse_singular(mech)
    methods = {"articulated": _articulated, "composite": _composite, "scan": _scan}
    accelerate = _method(methods, method)
    state = Kinematics.of(mech, q, qd)
    return accelerate(state, tau - passive_forces(state), f_ext)


def _articulated(state: Kinematics, gen_force: Tensor, f_ext: Tensor | None) -> Tensor:
    """Accelerations by the articulated-body sweeps, with implicit derivatives."""
    assert state.qd is not None
    equation = _DynamicsEquation(fixed_fields(state.mech))
    forces = () if f_ext is None else (f_ext,)
    inputs = (
        *parameters_of(state.mech),
        state.tree_q,
        state.qd,
        gen_force,
        *state.loop_motion,
        *forces,
    )
    # The tape of the recursion is shorter than that of Newton steps.
    return equation.solution(*inputs) if is_compiled_or_traced() else implicit(equation, *inputs)


@dataclass(frozen=True, eq=False)
class _DynamicsEquation:
    """The equation ID(q, qd, qdd, f_ext) - T = 0 in qdd, whose derivative to qdd is the mass matrix.

    Its inputs are (*parameters, tree_q, qd, gen_force, [X, xi], [f_ext]): all parameters, also those that the
    residual does not depend on.

    Attributes:
        fixed: the fields of the mechanism that are not parameters.
    """

    fixed: dict[str, Any]

    def split(self, inputs: tuple[Tensor, ...]) -> tuple[Kinematics, Tensor, tuple[Tensor, ...]]:
        """The mechanism with the given parameters at the state, gen_force and external forces."""
        mech, (tree_q, qd, gen_force, *rest) = split_mechanism(self.fixed, inputs)
        num_loop_inputs = 0 if mech.closing is None else 2
        state = Kinematics(mech, tree_q, qd).with_loop_motion(*rest[:num_loop_inputs])
        return state, gen_force, tuple(rest[num_loop_inputs:])

    def solution(self, *inputs: Tensor) -> Tensor:
        """The accelerations qdd, by the articulated-body sweeps."""
        state, gen_force, forces = self.split(inputs)
        return algorithms.forward_dynamics(model_at(state, *forces), gen_force)

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Inverse dynamics minus the joint forces."""
        state, gen_force, forces = self.split(inputs)
        return algorithms.inverse_dynamics(model_at(state, *forces), x) - gen_force

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """MM^-1 rhs."""
        state, _, _ = self.split(inputs)
        return algorithms.innovations(model_at(state, at_rest=True)).solve(rhs)


def _composite(state: Kinematics, gen_force: Tensor, f_ext: Tensor | None) -> Tensor:
    return algorithms.composite_forward_dynamics(model_at(state, f_ext), gen_force)


def _scan(state: Kinematics, gen_force: Tensor, f_ext: Tensor | None) -> Tensor:
    mech = state.mech
    if mech.bare_joints:
        names = ", ".join(map(repr, mech.bare_joints))
        raise MechanismError(
            f'method="scan" cannot cross joint {names} of {mech.name!r}: the body it moves has no inertia '
            "about it.",
            "The scan crosses every joint without its outboard bodies; the sweeps do not.",
            'Pass method="articulated", or give the body inertia or the joint armature '
            "(mech.replace(...)), then call torchsko.mark_singular_joints(mech).",
        )
    model = coupled(state, assemble_level_free(state, f_ext))
    return algorithms.innovations(model, method="scan").forward_dynamics(gen_force)


@verb
def hybrid_dynamics(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    tau: Tensor,
    qdd: Tensor,
    prescribed: Iterable[str],
    f_ext: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Hybrid dynamics: the missing accelerations and forces where some joints have prescribed motion, O(N).

    Args:
        tau: joint forces, `[*batch, num_dof]` [N m or N]; read at force-driven joints only.
        qdd: acceleration, `[*batch, num_dof]` [rad/s^2 or m/s^2]; read at prescribed joints only.
        prescribed: names of the joints with prescribed acceleration; any subset, which may change between
            calls.

    Returns:
        qdd and tau of all dofs, `[*batch, num_dof]` each. Given values are returned unchanged (tau to
        rounding, where a joint has passive forces).

    Raises:
        MechanismError: on an unknown joint, or when a force-driven joint's hinge inertia vanishes and
            no prescribed joint is outboard of it; names the joints.

    Reference: Jain 2024, SOA slides 9, O(N) hybrid dynamics.
    """
    names = check_names("prescribed", prescribed, mech.joint_names[0])
    nodes = tuple(mech.joint_index(name) for name in names)
    refuse_singular(mech, nodes)
    state = Kinematics.of(mech, q, qd)
    passive = passive_forces(state)
    model = model_at(state, f_ext)
    one_body = mech.coupling is None and mech.closing is None and mech.layout.dofs.most == 1
    given = nodes if one_body else _marked(mech, names)
    accel, force = algorithms.hybrid_dynamics(model, tau - passive, qdd, given)
    return accel, force + passive


def _marked(mech: Mechanism, joints: Iterable[str]) -> Tensor:
    """Mask of the dofs of these joints, `[num_dof]`; a hinge that moves several bodies has several joints."""
    chosen = {i for name in joints for i in range(mech.num_dof)[mech.dof_slice(name)]}
    return torch.tensor([i in chosen for i in range(mech.num_dof)], device=mech.device)


@verb
def mass_matrix(mech: Mechanism, q: Tensor) -> Tensor:
    """The joint-space mass matrix, armature included.

    Returns:
        `[*batch, num_dof, num_dof]`, symmetric [kg m^2, kg m or kg].

    Reference: Jain 2011, Part II, Algorithm 4.2.
    """
    return algorithms.mass_matrix(model_at(Kinematics.of(mech, q)))


@verb
def bias_force(mech: Mechanism, q: Tensor, qd: Tensor, f_ext: Tensor | None = None) -> Tensor:
    """Joint forces at zero acceleration: Coriolis, centrifugal, gravity and passive forces.

    Returns:
        `[*batch, num_dof]` [N m or N].

    Reference: Jain 2011, Part II, Algorithm 3.1 (at zero acceleration).
    """
    state = Kinematics.of(mech, q, qd)
    return algorithms.bias_force(model_at(state, f_ext)) + passive_forces(state)


def refuse_singular(mech: Mechanism, prescribed: Collection[int] = ()) -> None:
    """Refuse forward dynamics where a hinge inertia vanishes; determined at load, no value is read here.

    Args:
        mech: the mechanism.
        prescribed: joints with prescribed acceleration. They need no inertia, and their full inertia acts on
            the joints inboard.

    Raises:
        MechanismError: names the joints.
    """
    tree = mech.layout.tree
    spared = {k for j in prescribed for k in (j, *tree.ancestors(j))}
    singular = [n for n in mech.singular_joints if mech.joint_index(n) not in spared]
    if singular:
        raise MechanismError(*undefined(mech.name, singular))


def _method(methods: dict[str, Callable], name: str, *others: str) -> Callable:
    if name not in methods:
        raise ShapeError(
            f"there is no method {name!r}.",
            "All methods give the same result.",
            f"Pass one of: {', '.join(map(repr, (*methods, *others)))}.",
        )
    return methods[name]
