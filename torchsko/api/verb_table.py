"""Table of verbs: the public functions of a mechanism, one import and one row each.

A verb is a function whose first argument is a mechanism, decorated with `torchsko.mechanism.dispatch.verb`.
Its import here makes it public. Its row makes it a method of `torchsko.Dynamics` and a kernel of
`torchsko.fused.FusedMechanism`. Tensors are inputs of a kernel; every other argument (frame names, a
reference frame, a method) is a constant, with one kernel for each value.

To add a verb: write the function, add its import and its row here, and a case to
``tests/transforms/verbs.py``. Names with an underscore stay out of the public names, which
``torchsko/__init__.pyi`` takes from here.
"""

from typing import Any as _Any

from torchsko.actuators.actuator_forces import actuate as _actuate
from torchsko.actuators.file_actuators import actuators_of as _actuators_of
from torchsko.actuators.file_tendons import tendons_of as _tendons_of
from torchsko.algorithms.operational_space import rounding_of_rank as _rounding_of_rank
from torchsko.api.row import method as _method
from torchsko.bridge.assemble import assemble as assemble
from torchsko.bridge.body_poses import Pose as Pose
from torchsko.bridge.singular_hinges import mark_singular_joints as mark_singular_joints
from torchsko.contact.contact_step import step as step
from torchsko.contact.points import contacts as contacts
from torchsko.contact.randomize import randomize as randomize
from torchsko.contact.soft_dynamics import contact_dynamics as _contact_dynamics
from torchsko.contact.soft_dynamics import contact_forces as contact_forces
from torchsko.control.ik.inverse_kinematics import inverse_kinematics as inverse_kinematics
from torchsko.integrators.event_location import stop_at as _stop_at
from torchsko.integrators.finite_checks import first_nonfinite as _first_nonfinite
from torchsko.integrators.integrators import advance as _advance
from torchsko.integrators.linearize import linear_model as _linear_model
from torchsko.integrators.linearize import linearize as linearize
from torchsko.integrators.rollout import rollout as _rollout
from torchsko.io.saving import save as save
from torchsko.mechanism.dispatch import MechanismSource as _MechanismSource
from torchsko.mechanism.manifold import difference as difference
from torchsko.mechanism.manifold import expand as expand
from torchsko.mechanism.manifold import expand_acceleration as expand_acceleration
from torchsko.mechanism.manifold import expand_velocity as expand_velocity
from torchsko.mechanism.manifold import initial_state as initial_state
from torchsko.mechanism.manifold import integrate as integrate
from torchsko.mechanism.mechanism import Mechanism as _Mechanism
from torchsko.sensing.contact_wrenches import contact_wrenches as _contact_wrenches
from torchsko.sensing.equality_forces import equality_forces as _equality_forces
from torchsko.sensing.sensors import sensors as sensors
from torchsko.verbs.analytic import analytic_jacobian as analytic_jacobian
from torchsko.verbs.analytic import frame_coordinates as frame_coordinates
from torchsko.verbs.balance import (
    centroidal_momentum_matrix_rate as centroidal_momentum_matrix_rate,
)
from torchsko.verbs.balance import centroidal_momentum_rate as centroidal_momentum_rate
from torchsko.verbs.balance import subtree_centers as subtree_centers
from torchsko.verbs.balance import subtree_masses as subtree_masses
from torchsko.verbs.balance import zero_moment_point as zero_moment_point
from torchsko.verbs.base_parameters import base_parameters as base_parameters
from torchsko.verbs.centroidal_derivatives import CentroidalDerivatives as _CentroidalDerivatives
from torchsko.verbs.centroidal_derivatives import centroidal_derivatives as centroidal_derivatives
from torchsko.verbs.configuration_derivatives import (
    difference_derivatives as difference_derivatives,
)
from torchsko.verbs.configuration_derivatives import (
    integrate_derivatives as integrate_derivatives,
)
from torchsko.verbs.coriolis import christoffel_symbols as christoffel_symbols
from torchsko.verbs.coriolis import coriolis_matrix as coriolis_matrix
from torchsko.verbs.derivatives import forward_dynamics_derivatives as forward_dynamics_derivatives
from torchsko.verbs.derivatives import inverse_dynamics_derivatives as inverse_dynamics_derivatives
from torchsko.verbs.dynamics import bias_force as bias_force
from torchsko.verbs.dynamics import forward_dynamics as forward_dynamics
from torchsko.verbs.dynamics import hybrid_dynamics as hybrid_dynamics
from torchsko.verbs.dynamics import inverse_dynamics as inverse_dynamics
from torchsko.verbs.dynamics import mass_matrix as mass_matrix
from torchsko.verbs.energy import PowerBalance as _PowerBalance
from torchsko.verbs.energy import centroidal_inertia as centroidal_inertia
from torchsko.verbs.energy import composite_inertias as composite_inertias
from torchsko.verbs.energy import power_balance as power_balance
from torchsko.verbs.energy import total_energy as total_energy
from torchsko.verbs.external_force import external_force as external_force
from torchsko.verbs.external_force import external_force_derivative as external_force_derivative
from torchsko.verbs.frame_compliance import (
    consistent_jacobian_inverse as consistent_jacobian_inverse,
)
from torchsko.verbs.frame_compliance import manipulability as manipulability
from torchsko.verbs.frame_compliance import (
    operational_space_compliance as operational_space_compliance,
)
from torchsko.verbs.frame_compliance import operational_space_inertia as operational_space_inertia
from torchsko.verbs.frame_derivatives import (
    frame_acceleration_derivatives as frame_acceleration_derivatives,
)
from torchsko.verbs.frame_derivatives import (
    frame_velocity_derivatives as frame_velocity_derivatives,
)
from torchsko.verbs.frames import forward_kinematics as forward_kinematics
from torchsko.verbs.frames import frame_acceleration as frame_acceleration
from torchsko.verbs.frames import frame_jacobian as frame_jacobian
from torchsko.verbs.frames import frame_jacobian_rate as frame_jacobian_rate
from torchsko.verbs.frames import frame_pose as frame_pose
from torchsko.verbs.frames import frame_velocity as frame_velocity
from torchsko.verbs.held.held_mechanism import constrain as constrain
from torchsko.verbs.loop_closing import close_loops as close_loops
from torchsko.verbs.momenta import center_of_mass as center_of_mass
from torchsko.verbs.momenta import centroidal_momentum as centroidal_momentum
from torchsko.verbs.momenta import centroidal_momentum_matrix as centroidal_momentum_matrix
from torchsko.verbs.momenta import com_acceleration as com_acceleration
from torchsko.verbs.momenta import com_jacobian as com_jacobian
from torchsko.verbs.momenta import com_velocity as com_velocity
from torchsko.verbs.momenta import gravity_force as gravity_force
from torchsko.verbs.momenta import joint_wrenches as joint_wrenches
from torchsko.verbs.momenta import kinetic_energy as kinetic_energy
from torchsko.verbs.momenta import potential_energy as potential_energy
from torchsko.verbs.passive_forces import PassiveForces as _PassiveForces
from torchsko.verbs.passive_forces import passive_force as passive_force
from torchsko.verbs.passive_forces import passive_force_parts as passive_force_parts
from torchsko.verbs.regressors import friction_parameters as friction_parameters
from torchsko.verbs.regressors import friction_regressor as friction_regressor
from torchsko.verbs.regressors import inertial_parameters as inertial_parameters
from torchsko.verbs.regressors import kinetic_energy_regressor as kinetic_energy_regressor
from torchsko.verbs.regressors import momentum_regressor as momentum_regressor
from torchsko.verbs.regressors import potential_energy_regressor as potential_energy_regressor
from torchsko.verbs.regressors import torque_regressor as torque_regressor
from torchsko.verbs.regressors import wrench_regressor as wrench_regressor

_SCAN = "The scan trades more operations for parallel ones; a kernel runs them one after another."
_PARENTS = (
    "The sequence of operations follows from the tree, which must be known when a kernel is built."
)
_SINGULAR = {
    "pinv": "A pseudo-inverse takes eigenvalues, which no fixed sequence of operations gives.",
    "raise": "The error depends on values, which a kernel cannot raise errors for.",
}


def _rank_tolerance(mech: _Mechanism, options: dict[str, _Any]) -> float:
    chosen = options["frames"]
    return _rounding_of_rank(6 * (1 if isinstance(chosen, str) else len(chosen)), mech.dtype)


_BRANCHES = "It branches on values and returns {}; kernels return tensors."
_INVERTS = {"refuses": {"singular": _SINGULAR}, "default_of": {"rank_tolerance": _rank_tolerance}}


class _Verbs(_MechanismSource):
    """Every public function of a mechanism as a method, one row each."""

    inverse_dynamics = _method(inverse_dynamics, refuses={"parents": _PARENTS})
    forward_dynamics = _method(forward_dynamics, refuses={"method": {"scan": _SCAN}})
    hybrid_dynamics = _method(hybrid_dynamics, 2)
    mass_matrix = _method(mass_matrix)
    bias_force = _method(bias_force)
    passive_force = _method(passive_force)
    inverse_dynamics_derivatives = _method(inverse_dynamics_derivatives, 3)
    forward_dynamics_derivatives = _method(forward_dynamics_derivatives, 3)
    # The kernel of linearize, whose state is a named tuple.
    linear_model = _method(_linear_model, 2)
    coriolis_matrix = _method(coriolis_matrix)
    christoffel_symbols = _method(christoffel_symbols)
    passive_force_parts = _method(passive_force_parts, _PassiveForces)
    torque_regressor = _method(torque_regressor)
    friction_regressor = _method(friction_regressor)
    wrench_regressor = _method(wrench_regressor)
    momentum_regressor = _method(momentum_regressor)
    kinetic_energy_regressor = _method(kinetic_energy_regressor)
    potential_energy_regressor = _method(potential_energy_regressor)
    forward_kinematics = _method(forward_kinematics, Pose)
    frame_pose = _method(frame_pose, Pose)
    frame_jacobian = _method(frame_jacobian)
    frame_velocity = _method(frame_velocity)
    frame_acceleration = _method(frame_acceleration)
    frame_jacobian_rate = _method(frame_jacobian_rate)
    frame_velocity_derivatives = _method(frame_velocity_derivatives, 2)
    frame_acceleration_derivatives = _method(frame_acceleration_derivatives, 3)
    frame_coordinates = _method(frame_coordinates)
    analytic_jacobian = _method(analytic_jacobian)
    center_of_mass = _method(center_of_mass)
    com_velocity = _method(com_velocity)
    com_acceleration = _method(com_acceleration)
    com_jacobian = _method(com_jacobian)
    kinetic_energy = _method(kinetic_energy)
    potential_energy = _method(potential_energy)
    total_energy = _method(total_energy)
    power_balance = _method(power_balance, _PowerBalance)
    composite_inertias = _method(composite_inertias)
    centroidal_inertia = _method(centroidal_inertia)
    centroidal_momentum = _method(centroidal_momentum)
    centroidal_momentum_matrix = _method(centroidal_momentum_matrix)
    subtree_centers = _method(subtree_centers)
    centroidal_momentum_rate = _method(centroidal_momentum_rate)
    centroidal_momentum_matrix_rate = _method(centroidal_momentum_matrix_rate)
    centroidal_derivatives = _method(centroidal_derivatives, _CentroidalDerivatives)
    zero_moment_point = _method(zero_moment_point)
    gravity_force = _method(gravity_force)
    joint_wrenches = _method(joint_wrenches)
    operational_space_compliance = _method(operational_space_compliance)
    operational_space_inertia = _method(operational_space_inertia, **_INVERTS)
    consistent_jacobian_inverse = _method(consistent_jacobian_inverse, **_INVERTS)
    manipulability = _method(manipulability)
    external_force = _method(external_force)
    external_force_derivative = _method(external_force_derivative)
    integrate = _method(integrate)
    difference = _method(difference)
    integrate_derivatives = _method(integrate_derivatives, 2)
    difference_derivatives = _method(difference_derivatives, 2)
    expand = _method(expand)
    expand_velocity = _method(expand_velocity)
    expand_acceleration = _method(expand_acceleration)
    assemble = _method(
        assemble, 0, refuses={"": "It returns a model of operators; kernels return tensors."}
    )
    close_loops = _method(
        close_loops,
        0,
        refuses={
            "": "It takes up to 60 steps with a factorization each; ts.integrate has a kernel."
        },
    )
    mark_singular_joints = _method(
        mark_singular_joints,
        0,
        refuses={"": _BRANCHES.format("a mechanism")},
    )
    first_nonfinite = _method(
        _first_nonfinite,
        0,
        tensors="qs qds",
        refuses={"": _BRANCHES.format("a report")},
    )
    contacts = contacts
    contact_forces = contact_forces
    contact_dynamics = _contact_dynamics
    constrain = constrain
    randomize = randomize
    step = step
    initial_state = initial_state
    actuators_of = _actuators_of
    tendons_of = _tendons_of
    sensors = sensors
    contact_wrenches = _contact_wrenches
    equality_forces = _equality_forces
    advance = _advance
    stop_at = _stop_at
    linearize = linearize
    inertial_parameters = inertial_parameters
    friction_parameters = friction_parameters
    base_parameters = base_parameters
    subtree_masses = subtree_masses
    rollout = _rollout
    inverse_kinematics = inverse_kinematics
    actuate = _actuate
    save = save

    def _verb(self, row: _Any, args: tuple[_Any, ...], kwargs: _Any) -> _Any:
        """Call the verb of a row with these arguments."""
        return row.function(self, *args, **kwargs)
