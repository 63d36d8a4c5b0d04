"""Table of verbs: one row for each public function of a mechanism.

A verb is a function whose first argument is a mechanism, and a row in `Verbs`. The row declares which
arguments are tensors and how many tensors the function returns. From the rows follow the methods of
`torchsko.Dynamics` and the kernels of `torchsko.FusedMechanism`. Tensors are inputs of a kernel; every other
argument (frame names, a reference frame, a method) is a constant, with one kernel for each value.

To add a verb: write the function, add its row to `Verbs` and its name to ``torchsko/__init__.pyi``, and add a
case to ``tests/transforms/verbs.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from torchsko.actuation import actuator_forces as acting
from torchsko.actuation import file_actuators, file_tendons
from torchsko.algorithms.operational_space import rounding_of_rank
from torchsko.bridge.assemble import assemble
from torchsko.bridge.singular_hinges import checked
from torchsko.contact import contact_dynamics, contact_step, points, randomise
from torchsko.control.ik import inverse_kinematics as control
from torchsko.errors import FusedError
from torchsko.io import saving
from torchsko.mechanism import coordinates, simulation_state
from torchsko.mechanism.dispatch import MechanismLike, MechanismSource
from torchsko.mechanism.joints import configuration
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout import finite_checks as finite
from torchsko.rollout import integrators
from torchsko.rollout import linearize as linearized
from torchsko.rollout import rollout as rollouts
from torchsko.sensing import contact_wrenches, equality_forces
from torchsko.sensing import sensors as sensing
from torchsko.verbs import (
    analytic,
    balance,
    base_parameters,
    centroidal_derivatives,
    coriolis,
    derivatives,
    dynamics,
    energy,
    frame,
    frame_derivatives,
    frames,
    kinematics,
    loop_closing,
    momenta,
    passive_forces,
    regressors,
    relative,
)
from torchsko.verbs import frame_compliance as operational_space
from torchsko.verbs.constrained import held_mechanism

P = ParamSpec("P")
R = TypeVar("R")
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False)
class Row:
    """Signature of a verb, as layers and kernels use it; made by `make_row`.

    Attributes:
        name: name of the verb.
        function: the function, whose first argument is a mechanism.
        positional: arguments after the mechanism that may be passed by position.
        required: arguments without a default.
        arguments: all arguments after the mechanism.
        tensors: arguments that are tensors, in the order of the signature.
        options: default value of each other argument.
        num_outputs: number of tensors that the function returns; 0 if it returns something else.
        pack: makes the result from a tuple of tensors.
        refuses: reason why an option has no kernel, for all its values or by value; the name "" stands for
            the verb itself.
        default_of: functions of (mechanism, options) that give the value of an option passed as None.
    """

    name: str
    function: Callable[..., Any]
    positional: tuple[str, ...]
    required: frozenset[str]
    arguments: frozenset[str]
    tensors: tuple[str, ...]
    options: Mapping[str, Any]
    num_outputs: int
    pack: Callable[[tuple[Tensor, ...]], Any]
    refuses: Mapping[str, str | Mapping[Any, str]]
    default_of: Mapping[str, Callable[..., Any]]

    def split(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], Options]:
        """Separate the arguments of a call into tensors by name and the values of all options.

        Raises:
            TypeError: as a call of the function with these arguments would.
        """
        given = dict(zip(self.positional, args, strict=False))
        given.update(kwargs)
        all_known = len(given) == len(args) + len(kwargs) and self.required.issubset(given)
        if not all_known or not self.arguments.issuperset(given):
            inspect.signature(self.function).bind(None, *args, **kwargs)
        states = {n: given[n] for n in self.tensors if given.get(n) is not None}
        options = [(n, _as_key(given.get(n, default))) for n, default in self.options.items()]
        return states, tuple(options)

    def refusal(self, options: Options) -> FusedError | None:
        """The error for options that have no kernel; None if there is one."""
        for name, value in (("", None), *options):
            rule = self.refuses.get(name)
            reason = rule.get(value) if isinstance(rule, Mapping) else rule
            if reason is not None and (not name or value is not self.options[name]):
                option = f"{name}={value!r}" if isinstance(rule, Mapping) else name
                what = f"{self.name} has no kernel" + (f" for {option}" if name else "")
                return FusedError(f"{what}.", reason, f"Call {self._eager_call}.")
        if names := [name for name, value in options if _holds_tensors(value)]:
            return FusedError(
                f"{', '.join(names)} of {self.name} is a tensor, or a Frame, which contains tensors.",
                "It is a constant of the kernel, but a tensor's values may differ from call to call.",
                "Pass a number or names. Or fuse a function that captures the tensor, "
                f"ts.fuse(lambda mech, q: ts.{self.name}(mech, q, ...), mech). Or call {self._eager_call}.",
            )
        return None

    @property
    def _eager_call(self) -> str:
        return f"ts.{self.name}(fast.mechanism(), ...), which runs eagerly"

    def bound(self, names: Iterable[str], options: Options, like: Mechanism) -> Callable[..., Any]:
        """The verb as a function of the mechanism and of positional tensors, with fixed options.

        Args:
            names: names of the tensors, in their order.
            options: values of the options.
            like: mechanism whose dtype gives defaults; a traced mechanism has no dtype.
        """
        names, chosen = tuple(names), dict(options)
        for name, default in self.default_of.items():
            chosen[name] = default(like, chosen) if chosen[name] is None else chosen[name]

        def call(mech: Mechanism, *tensors: Tensor) -> Any:
            return self.function(mech, **dict(zip(names, tensors, strict=True)), **chosen)

        return call


def make_row(
    function: Callable[..., Any],
    tensors: str,
    outputs: int | type[tuple] = 1,
    *,
    name: str | None = None,
    refuses: Mapping[str, str | Mapping[Any, str]] | None = None,
    default_of: Mapping[str, Callable[..., Any]] | None = None,
) -> Row:
    """Declare a verb.

    Args:
        function: function whose first argument is a mechanism.
        tensors: names of its tensor arguments, in the order of the signature, separated by spaces.
        outputs: number of tensors that it returns, or the named tuple of them.
        name: name of the verb; that of the function if left out.
        refuses: see `Row`.
        default_of: see `Row`.
    """
    arguments = [*inspect.signature(function).parameters.values()][1:]
    names = tuple(tensors.split())
    return Row(
        name or function.__name__,
        function,
        tuple(a.name for a in arguments if a.kind is not a.KEYWORD_ONLY),
        frozenset(a.name for a in arguments if a.default is a.empty),
        frozenset(a.name for a in arguments),
        names,
        {a.name: a.default for a in arguments if a.name not in names},
        outputs if isinstance(outputs, int) else len(outputs._fields),  # type: ignore[attr-defined]
        tuple if isinstance(outputs, int) else outputs._make,  # type: ignore[attr-defined]
        refuses or {},
        default_of or {},
    )


def _holds_tensors(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return any(isinstance(part, Tensor | frame.Frame) for part in parts)


def _as_key(value: Any) -> Any:
    """An option's value as part of a dictionary key: sequences of names become tuples."""
    if value is None or isinstance(value, (str, tuple, Tensor)) or not isinstance(value, Iterable):
        return value
    return tuple(value)


def method(
    function: Callable[Concatenate[MechanismLike, P], R],
    tensors: str,
    outputs: int | type[tuple] = 1,
    **row: Any,
) -> Callable[Concatenate[Any, P], R]:
    """Make a verb a method of objects that provide a mechanism; arguments as in `make_row`."""
    made = make_row(function, tensors, outputs, **row)

    @wraps(function)
    def call(self: Verbs, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._verb(made, args, kwargs)

    call.__doc__ = f"{(function.__doc__ or '').partition(chr(10))[0]} See `torchsko.{made.name}`."
    call.row = made  # type: ignore[attr-defined]
    return call


_SCAN = "The scan trades more operations for parallel ones; a kernel runs them one after another."
_PARENTS = (
    "The sequence of operations follows from the tree, which must be known when a kernel is built."
)
_SINGULAR = {
    "pinv": "A pseudo-inverse takes eigenvalues, which no fixed sequence of operations gives.",
    "raise": "The error depends on values, which a kernel cannot raise errors for.",
}


def _rank_tolerance(mech: Mechanism, options: Mapping[str, Any]) -> float:
    chosen = options["frames"]
    return rounding_of_rank(6 * (1 if isinstance(chosen, str) else len(chosen)), mech.dtype)


_INVERTS = {"refuses": {"singular": _SINGULAR}, "default_of": {"rank_tolerance": _rank_tolerance}}


class Verbs(MechanismSource):
    """Every public function of a mechanism as a method, one row each."""

    inverse_dynamics = method(
        dynamics.inverse_dynamics, "q qd qdd f_ext", refuses={"parents": _PARENTS}
    )
    forward_dynamics = method(
        dynamics.forward_dynamics, "q qd tau f_ext", refuses={"method": {"scan": _SCAN}}
    )
    hybrid_dynamics = method(dynamics.hybrid_dynamics, "q qd tau qdd f_ext", 2)
    mass_matrix = method(dynamics.mass_matrix, "q")
    bias_force = method(dynamics.bias_force, "q qd f_ext")
    passive_force = method(passive_forces.passive_force, "q qd")
    inverse_dynamics_derivatives = method(
        derivatives.inverse_dynamics_derivatives, "q qd qdd f_ext", 3
    )
    forward_dynamics_derivatives = method(
        derivatives.forward_dynamics_derivatives, "q qd tau f_ext", 3
    )
    linearize = method(linearized.linearize, "q qd tau", 2)
    coriolis_matrix = method(coriolis.coriolis_matrix, "q qd")
    christoffel_symbols = method(coriolis.christoffel_symbols, "q")
    passive_force_parts = method(
        passive_forces.passive_force_parts, "q qd", passive_forces.PassiveForces
    )
    torque_regressor = method(regressors.torque_regressor, "q qd qdd")
    drive_regressor = method(regressors.drive_regressor, "q qd qdd")
    wrench_regressor = method(regressors.wrench_regressor, "q qd qdd")
    momentum_regressor = method(regressors.momentum_regressor, "q qd")
    kinetic_energy_regressor = method(regressors.kinetic_energy_regressor, "q qd")
    potential_energy_regressor = method(regressors.potential_energy_regressor, "q")
    forward_kinematics = method(kinematics.forward_kinematics, "q", kinematics.Pose)
    frame_pose = method(frames.frame_pose, "q", kinematics.Pose)
    frame_jacobian = method(frames.frame_jacobian, "q")
    frame_velocity = method(frames.frame_velocity, "q qd")
    frame_acceleration = method(frames.frame_acceleration, "q qd qdd")
    frame_jacobian_rate = method(frames.frame_jacobian_rate, "q qd")
    frame_velocity_derivatives = method(frame_derivatives.frame_velocity_derivatives, "q qd", 2)
    frame_acceleration_derivatives = method(
        frame_derivatives.frame_acceleration_derivatives, "q qd qdd", 3
    )
    frame_coordinates = method(analytic.frame_coordinates, "q")
    analytic_jacobian = method(analytic.analytic_jacobian, "q")
    relative_pose = method(relative.relative_pose, "q", kinematics.Pose)
    relative_velocity = method(relative.relative_velocity, "q qd")
    relative_acceleration = method(relative.relative_acceleration, "q qd qdd")
    relative_jacobian = method(relative.relative_jacobian, "q")
    relative_jacobian_rate = method(relative.relative_jacobian_rate, "q qd")
    center_of_mass = method(momenta.center_of_mass, "q")
    com_velocity = method(momenta.com_velocity, "q qd")
    com_acceleration = method(momenta.com_acceleration, "q qd qdd")
    com_jacobian = method(momenta.com_jacobian, "q")
    kinetic_energy = method(momenta.kinetic_energy, "q qd")
    potential_energy = method(momenta.potential_energy, "q")
    total_energy = method(energy.total_energy, "q qd")
    power_balance = method(energy.power_balance, "q qd tau f_ext", energy.PowerBalance)
    composite_inertias = method(energy.composite_inertias, "q")
    centroidal_inertia = method(energy.centroidal_inertia, "q")
    centroidal_momentum = method(momenta.centroidal_momentum, "q qd")
    centroidal_momentum_matrix = method(momenta.centroidal_momentum_matrix, "q")
    subtree_centers = method(balance.subtree_centers, "q")
    centroidal_momentum_rate = method(balance.centroidal_momentum_rate, "q qd qdd")
    centroidal_momentum_matrix_rate = method(balance.centroidal_momentum_matrix_rate, "q qd")
    centroidal_derivatives = method(
        centroidal_derivatives.centroidal_derivatives,
        "q qd qdd",
        centroidal_derivatives.CentroidalDerivatives,
    )
    zero_moment_point = method(balance.zero_moment_point, "q qd qdd")
    gravity_force = method(momenta.gravity_force, "q")
    joint_wrenches = method(momenta.joint_wrenches, "q qd qdd f_ext")
    operational_space_compliance = method(operational_space.operational_space_compliance, "q")
    operational_space_inertia = method(operational_space.operational_space_inertia, "q", **_INVERTS)
    consistent_jacobian_inverse = method(
        operational_space.consistent_jacobian_inverse, "q", **_INVERTS
    )
    manipulability = method(operational_space.manipulability, "q")
    integrate = method(configuration.integrate, "q step")
    difference = method(configuration.difference, "start end")
    expand = method(coordinates.expand, "q")
    expand_velocity = method(coordinates.expand_velocity, "q qd")
    expand_acceleration = method(coordinates.expand_acceleration, "q qd qdd")
    # Verbs without a kernel.
    assemble = method(
        assemble,
        "q qd f_ext",
        0,
        refuses={"": "It returns a model of operators; kernels return tensors."},
    )
    close = method(
        loop_closing.close,
        "q",
        0,
        refuses={
            "": "It takes up to 60 steps with a factorisation each; ts.integrate has a kernel."
        },
    )
    checked = method(
        checked,
        "",
        0,
        refuses={"": "It branches on values and returns a mechanism; kernels return tensors."},
    )
    first_nonfinite = method(
        finite.first_nonfinite,
        "qs qds",
        0,
        refuses={"": "It branches on values and returns a report; kernels return tensors."},
    )
    # Plain methods: these have no state to trace, take time steps or write files.
    contacts = points.contacts
    contact_forces = contact_dynamics.contact_forces
    constrained_dynamics = contact_dynamics.constrained_dynamics
    constrain = held_mechanism.constrain
    randomise = randomise.randomise
    step = contact_step.step
    initial_state = simulation_state.initial_state
    actuators_of = file_actuators.actuators_of
    tendons_of = file_tendons.tendons_of
    sensors = sensing.sensors
    contact_wrenches = contact_wrenches.contact_wrenches
    equality_forces = equality_forces.equality_forces
    advance = integrators.advance
    inertial_parameters = regressors.inertial_parameters
    drive_parameters = regressors.drive_parameters
    base_parameters = base_parameters.base_parameters
    subtree_masses = balance.subtree_masses
    rollout = rollouts.rollout
    inverse_kinematics = control.inverse_kinematics
    actuate = acting.actuate
    save = saving.save

    def _verb(self, row: Row, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the verb of a row with these arguments."""
        return row.function(self, *args, **kwargs)


ROWS: dict[str, Row] = {
    name: entry.row for name, entry in vars(Verbs).items() if hasattr(entry, "row")
}
"""Rows by name."""

FUSIBLE = frozenset(name for name, row in ROWS.items() if "" not in row.refuses)
"""Names of the verbs that have a kernel, at least for some of their options."""
