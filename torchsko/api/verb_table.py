"""The table of verbs: a row each, from which come methods of layers and kernels of fused mechanisms.

A verb is a function whose first argument is a mechanism, and a row in `Verbs`. What arguments it takes is
read off its signature: tensors, whose names say their shapes, are inputs of a kernel; all others (names of
frames, a rule, a method) are constants, with a kernel for each choice. A row adds what no signature says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from torchsko.actuation import actuator_forces as acting
from torchsko.algorithms.operational_space import rounding_of_rank
from torchsko.bridge.assemble import assemble
from torchsko.bridge.singular_hinges import checked
from torchsko.control.ik import inverse_kinematics as control
from torchsko.io import saving
from torchsko.mechanism import coordinates
from torchsko.mechanism.dispatch import MechanismLike, MechanismSource
from torchsko.mechanism.joints import configuration
from torchsko.mechanism.mechanism import Mechanism
from torchsko.rollout import finite_checks as finite
from torchsko.rollout import linearize as linearized
from torchsko.rollout import rollout as rollouts
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
    momenta,
    regressors,
    relative,
)
from torchsko.verbs import frame_compliance as operational_space

P = ParamSpec("P")
R = TypeVar("R")
Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False)
class Row:
    """What layers and kernels need to know of one verb; made by `row_of`.

    Attributes:
        name: of the verb.
        function: of a mechanism.
        positional: names of the arguments after the mechanism that may come without their names.
        required: names of those that have no default.
        arguments: names of all.
        tensors: names of those that are tensors.
        options: defaults of all others.
        num_outputs: how many tensors the function returns.
        pack: makes its result of several tensors.
        refuses: for options without a kernel the reason, whatever the value or by value; "" for all.
        unless_given: what an option stands for that was left at None, by (mechanism, options).
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
    unless_given: Mapping[str, Callable[..., Any]]

    def split(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], Options]:
        """The tensors given in a call, by name, and the values of all options.

        Raises:
            TypeError: as a call of the function with these arguments would.
        """
        given = dict(zip(self.positional, args, strict=False))
        given.update(kwargs)
        all_known = len(given) == len(args) + len(kwargs) and self.required.issubset(given)
        if not all_known or not self.arguments.issuperset(given):
            inspect.signature(self.function).bind(None, *args, **kwargs)
        states = {n: given[n] for n in self.tensors if given.get(n) is not None}
        options = [(n, _constant(given.get(n, default))) for n, default in self.options.items()]
        return states, tuple(options)

    def refusal(self, options: Options) -> str | None:
        """Why no kernel takes these options, and what to call instead; None where one does."""
        for name, value in (("", None), *options):
            rule = self.refuses.get(name)
            reason = rule.get(value) if isinstance(rule, Mapping) else rule
            if reason is not None and (not name or value is not self.options[name]):
                said = f"{name}={value!r}" if isinstance(rule, Mapping) else name
                what = f"{self.name} has no kernel" + (f" for {said}" if name else "")
                return f"{what}.\n{reason}\nCall ts.{self.name}(fast.mechanism(), ...), which runs eagerly."
        if lost := [name for name, value in options if _of_tensors(value)]:
            return (
                f"{', '.join(lost)} of {self.name} was given as a tensor, or a Frame, which holds some.\n"
                "It is a constant of a kernel, and a tensor's values may differ from call to call.\n"
                "Pass a number or names; or make a kernel that reads such tensors anew at each call, "
                f"ts.fuse(lambda mech, q: ts.{self.name}(mech, q, ...), mech); or call "
                f"ts.{self.name}(fast.mechanism(), ...), which runs eagerly."
            )
        return None

    def bound(self, names: Iterable[str], options: Options, like: Mechanism) -> Callable[..., Any]:
        """The function of a mechanism and of the tensors named, in their order, the options fixed.

        Args:
            names: of the tensors.
            options: values of the others.
            like: gives its type, which a program in the tracing has not.
        """
        names, chosen = tuple(names), dict(options)
        for name, default in self.unless_given.items():
            chosen[name] = default(like, chosen) if chosen[name] is None else chosen[name]

        def call(mech: Mechanism, *tensors: Tensor) -> Any:
            return self.function(mech, **dict(zip(names, tensors, strict=True)), **chosen)

        return call


def row_of(
    function: Callable[..., Any],
    name: str | None = None,
    *,
    pack: Any = tuple,
    refuses: Mapping[str, str | Mapping[Any, str]] | None = None,
    unless_given: Mapping[str, Callable[..., Any]] | None = None,
) -> Row:
    """The row of a function; see `Row`. `pack` may be a class of named tuples."""
    signature, refuses = inspect.signature(function), refuses or {}
    arguments = [*signature.parameters.values()][1:]
    tensors = tuple(a.name for a in arguments if a.annotation in _TENSOR and a.name not in refuses)
    return Row(
        name or function.__name__,
        function,
        tuple(a.name for a in arguments if a.kind is not a.KEYWORD_ONLY),
        frozenset(a.name for a in arguments if a.default is a.empty),
        frozenset(a.name for a in arguments),
        tensors,
        {a.name: a.default for a in arguments if a.name not in tensors},
        len(getattr(pack, "_fields", ())) or str(signature.return_annotation).count("Tensor"),
        getattr(pack, "_make", pack),
        refuses,
        unless_given or {},
    )


_TENSOR = ("Tensor", "Tensor | None")


def _of_tensors(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return any(isinstance(part, Tensor | frame.Frame) for part in parts)


def _constant(value: Any) -> Any:
    """An option's value as a part of a key: sequences of names become tuples."""
    if value is None or isinstance(value, (str, tuple, Tensor)) or not isinstance(value, Iterable):
        return value
    return tuple(value)


def method(
    function: Callable[Concatenate[MechanismLike, P], R], **row: Any
) -> Callable[Concatenate[Any, P], R]:
    """A verb as a method of what gives a mechanism; keyword arguments as in `row_of`."""
    made = row_of(function, **row)

    @wraps(function)
    def call(self: Verbs, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._verb(made, args, kwargs)

    call.__doc__ = f"{(function.__doc__ or '').partition(chr(10))[0]} See `torchsko.{made.name}`."
    call.row = made  # type: ignore[attr-defined]
    return call


_SCAN = (
    "The scan does more operations so that fewer wait for one another; a kernel has none that wait."
)
_PARENTS = (
    "Its operations follow from the tree, which parents given as a tensor change from call to call."
)
_SINGULAR = {
    "pinv": "A pseudo-inverse takes eigenvalues, which no fixed sequence of operations gives.",
    "raise": "An error depends on values, which a kernel computes and nobody reads.",
}


def _rank_tolerance(mech: Mechanism, options: Mapping[str, Any]) -> float:
    chosen = options["frames"]
    return rounding_of_rank(6 * (1 if isinstance(chosen, str) else len(chosen)), mech.dtype)


_INVERTS = {"refuses": {"singular": _SINGULAR}, "unless_given": {"rank_tolerance": _rank_tolerance}}


class Verbs(MechanismSource):
    """Every public function of a mechanism, as a method of what gives one: the table, a row a line."""

    inverse_dynamics = method(dynamics.inverse_dynamics, refuses={"parents": _PARENTS})
    forward_dynamics = method(dynamics.forward_dynamics, refuses={"method": {"scan": _SCAN}})
    hybrid_dynamics = method(dynamics.hybrid_dynamics)
    mass_matrix = method(dynamics.mass_matrix)
    bias_force = method(dynamics.bias_force)
    passive_force = method(dynamics.passive_force)
    inverse_dynamics_derivatives = method(derivatives.inverse_dynamics_derivatives)
    forward_dynamics_derivatives = method(derivatives.forward_dynamics_derivatives)
    linearize = method(linearized.linearize)
    coriolis_matrix = method(coriolis.coriolis_matrix)
    christoffel_symbols = method(coriolis.christoffel_symbols)
    passive_force_parts = method(energy.passive_force_parts, pack=energy.PassiveForces)
    torque_regressor = method(regressors.torque_regressor)
    drive_regressor = method(regressors.drive_regressor)
    wrench_regressor = method(regressors.wrench_regressor)
    momentum_regressor = method(regressors.momentum_regressor)
    kinetic_energy_regressor = method(regressors.kinetic_energy_regressor)
    potential_energy_regressor = method(regressors.potential_energy_regressor)
    forward_kinematics = method(kinematics.forward_kinematics, pack=kinematics.Pose)
    frame_pose = method(frames.frame_pose, pack=kinematics.Pose)
    frame_jacobian = method(frames.frame_jacobian)
    frame_velocity = method(frames.frame_velocity)
    frame_acceleration = method(frames.frame_acceleration)
    frame_jacobian_rate = method(frames.frame_jacobian_rate)
    frame_velocity_derivatives = method(frame_derivatives.frame_velocity_derivatives)
    frame_acceleration_derivatives = method(frame_derivatives.frame_acceleration_derivatives)
    frame_coordinates = method(analytic.frame_coordinates)
    analytic_jacobian = method(analytic.analytic_jacobian)
    relative_pose = method(relative.relative_pose, pack=kinematics.Pose)
    relative_velocity = method(relative.relative_velocity)
    relative_acceleration = method(relative.relative_acceleration)
    relative_jacobian = method(relative.relative_jacobian)
    relative_jacobian_rate = method(relative.relative_jacobian_rate)
    center_of_mass = method(momenta.center_of_mass)
    com_velocity = method(momenta.com_velocity)
    com_acceleration = method(momenta.com_acceleration)
    com_jacobian = method(momenta.com_jacobian)
    kinetic_energy = method(momenta.kinetic_energy)
    potential_energy = method(momenta.potential_energy)
    total_energy = method(energy.total_energy)
    power_balance = method(energy.power_balance, pack=energy.PowerBalance)
    composite_inertias = method(energy.composite_inertias)
    centroidal_inertia = method(energy.centroidal_inertia)
    centroidal_momentum = method(momenta.centroidal_momentum)
    centroidal_momentum_matrix = method(momenta.centroidal_momentum_matrix)
    subtree_centers = method(balance.subtree_centers)
    centroidal_momentum_rate = method(balance.centroidal_momentum_rate)
    centroidal_momentum_matrix_rate = method(balance.centroidal_momentum_matrix_rate)
    centroidal_derivatives = method(
        centroidal_derivatives.centroidal_derivatives,
        pack=centroidal_derivatives.CentroidalDerivatives,
    )
    zero_moment_point = method(balance.zero_moment_point)
    gravity_force = method(momenta.gravity_force)
    joint_wrenches = method(momenta.joint_wrenches)
    operational_space_compliance = method(operational_space.operational_space_compliance)
    operational_space_inertia = method(operational_space.operational_space_inertia, **_INVERTS)
    consistent_jacobian_inverse = method(operational_space.consistent_jacobian_inverse, **_INVERTS)
    manipulability = method(operational_space.manipulability)
    integrate = method(configuration.integrate)
    difference = method(configuration.difference)
    expand = method(coordinates.expand)
    expand_velocity = method(coordinates.expand_velocity)
    # No kernels, each for its reason.
    assemble = method(assemble, refuses={"": "A model is made of operators; kernels give tensors."})
    checked = method(checked, refuses={"": "It reads values, and gives a mechanism, no tensor."})
    first_nonfinite = method(
        finite.first_nonfinite, refuses={"": "It reads values, and gives a report, no tensor."}
    )
    # As they are: without a state is nothing to trace, what takes steps runs the kernels of these, and what
    # actuators are is no tensor.
    inertial_parameters = regressors.inertial_parameters
    drive_parameters = regressors.drive_parameters
    base_parameters = base_parameters.base_parameters
    subtree_masses = balance.subtree_masses
    rollout = rollouts.rollout
    inverse_kinematics = control.inverse_kinematics
    actuate = acting.actuate
    save = saving.save

    def _verb(self, row: Row, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What a row's verb gives for these arguments."""
        return row.function(self, *args, **kwargs)


ROWS: dict[str, Row] = {
    name: entry.row for name, entry in vars(Verbs).items() if hasattr(entry, "row")
}
"""Rows by name; see `Verbs`."""

FUSIBLE = frozenset(name for name, row in ROWS.items() if "" not in row.refuses)
"""Names of those that are kernels, for some of their options at least."""
