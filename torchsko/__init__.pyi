"""Public names of torchsko: the only list of them, which type checkers and `torchsko/__init__.py` read."""

# Imported together with the package.
from torchsko import algorithms as algorithms
from torchsko import errors as errors
from torchsko import robots as robots
from torchsko.algebra.operators.model import SKOModel as SKOModel
from torchsko.algebra.recursions.factorisation import innovations as innovations
from torchsko.algebra.recursions.innovations import Innovations as Innovations
from torchsko.algebra.topology.subgraph import aggregation_subgraph as aggregation_subgraph
from torchsko.algebra.topology.subgraph import path_induced_nodes as path_induced_nodes
from torchsko.algebra.topology.tree import Tree as Tree
from torchsko.bridge.assemble import assemble as assemble
from torchsko.bridge.body_poses import Pose as Pose
from torchsko.bridge.singular_hinges import checked as checked
from torchsko.errors import CompilerError as CompilerError
from torchsko.errors import FitError as FitError
from torchsko.errors import FusedError as FusedError
from torchsko.errors import MechanismError as MechanismError
from torchsko.errors import MissingExtraError as MissingExtraError
from torchsko.errors import NonFiniteError as NonFiniteError
from torchsko.errors import RobotFileError as RobotFileError
from torchsko.errors import RobotFileWarning as RobotFileWarning
from torchsko.errors import ShapeError as ShapeError
from torchsko.errors import SingularError as SingularError
from torchsko.errors import TorchskoError as TorchskoError
from torchsko.errors import TreeError as TreeError
from torchsko.fused.automatic import rollout as rollout
from torchsko.mechanism.coordinates import expand as expand
from torchsko.mechanism.coordinates import expand_acceleration as expand_acceleration
from torchsko.mechanism.coordinates import expand_velocity as expand_velocity
from torchsko.mechanism.joints.configuration import difference as difference
from torchsko.mechanism.joints.configuration import integrate as integrate
from torchsko.mechanism.joints.kind import JointType as JointType
from torchsko.mechanism.mechanism import Mechanism as Mechanism
from torchsko.mechanism.simulation_state import State as State
from torchsko.mechanism.simulation_state import initial_state as initial_state
from torchsko.mechanism.simulation_state import reset as reset
from torchsko.verbs.dynamics import bias_force as bias_force
from torchsko.verbs.dynamics import forward_dynamics as forward_dynamics
from torchsko.verbs.dynamics import hybrid_dynamics as hybrid_dynamics
from torchsko.verbs.dynamics import inverse_dynamics as inverse_dynamics
from torchsko.verbs.dynamics import mass_matrix as mass_matrix
from torchsko.verbs.passive_forces import passive_force as passive_force

__version__: str

# Imported at their first use: robot files, compiled kernels, learning, control, less common verbs.
from torchsko import control as control
from torchsko import identification as identification
from torchsko import learn as learn
from torchsko import view as view
from torchsko.actuation.actuated_control import ActuatedControl as ActuatedControl
from torchsko.actuation.actuator_forces import actuate as actuate
from torchsko.actuation.actuators import Actuators as Actuators
from torchsko.actuation.delay import Delay as Delay
from torchsko.actuation.file_actuators import actuators_of as actuators_of
from torchsko.actuation.file_tendons import tendons_of as tendons_of
from torchsko.actuation.tendons import Tendons as Tendons
from torchsko.algebra.transforms.partition import partition as partition
from torchsko.algebra.transforms.transform import aggregate as aggregate
from torchsko.algebra.transforms.transform import aggregate_segments as aggregate_segments
from torchsko.algebra.transforms.transform import embed as embed
from torchsko.algorithms.member_length import member_length_matrix as member_length_matrix
from torchsko.algorithms.member_length import member_length_operator as member_length_operator
from torchsko.contact.contact_dynamics import ConstrainedDynamics as ConstrainedDynamics
from torchsko.contact.contact_dynamics import constrained_dynamics as constrained_dynamics
from torchsko.contact.contact_dynamics import contact_forces as contact_forces
from torchsko.contact.contact_model import ContactModel as ContactModel
from torchsko.contact.contact_step import step as step
from torchsko.contact.points import Contacts as Contacts
from torchsko.contact.points import contacts as contacts
from torchsko.contact.randomise import RandomRobots as RandomRobots
from torchsko.contact.randomise import randomise as randomise
from torchsko.contact.smooth_contact import SmoothContact as SmoothContact
from torchsko.control.ik.inverse_kinematics import inverse_kinematics as inverse_kinematics
from torchsko.control.ik.levenberg_marquardt import IKResult as IKResult
from torchsko.fused.fuse import fuse as fuse
from torchsko.fused.fused_call import FusedCall as FusedCall
from torchsko.fused.fused_mechanism import FusedMechanism as FusedMechanism
from torchsko.implicit.loop import loop as loop
from torchsko.io.builder import MechanismBuilder as MechanismBuilder
from torchsko.io.conventions.conversion import Conventions as Conventions
from torchsko.io.conventions.conversion import conventions as conventions
from torchsko.io.loading.build import build_mechanism as build_mechanism
from torchsko.io.loading.files import load as load
from torchsko.io.loading.mujoco_models import from_mujoco as from_mujoco
from torchsko.io.saving import save as save
from torchsko.io.urdf.urdf_transmissions import Transmission as Transmission
from torchsko.io.urdf.urdf_transmissions import transmissions_of as transmissions_of
from torchsko.learn.dynamics_module import Dynamics as Dynamics
from torchsko.mechanism.file_data.actuator import Actuator as Actuator
from torchsko.mechanism.file_data.file_metadata import Closure as Closure
from torchsko.mechanism.file_data.sensor import Sensor as Sensor
from torchsko.mechanism.file_data.tendon import Tendon as Tendon
from torchsko.mechanism.joints.compound import Slide as Slide
from torchsko.mechanism.joints.compound import Turn as Turn
from torchsko.mechanism.joints.registry import register_joint as register_joint
from torchsko.rollout.contact_integrator import ContactStep as ContactStep
from torchsko.rollout.finite_checks import first_nonfinite as first_nonfinite
from torchsko.rollout.integrators import advance as advance
from torchsko.rollout.linearize import linearize as linearize
from torchsko.sensing.contact_wrenches import contact_wrenches as contact_wrenches
from torchsko.sensing.equality_forces import equality_forces as equality_forces
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
from torchsko.verbs.base_parameters import BaseParameters as BaseParameters
from torchsko.verbs.base_parameters import base_parameters as base_parameters
from torchsko.verbs.centroidal_derivatives import CentroidalDerivatives as CentroidalDerivatives
from torchsko.verbs.centroidal_derivatives import centroidal_derivatives as centroidal_derivatives
from torchsko.verbs.constrained.held_mechanism import HeldMechanism as HeldMechanism
from torchsko.verbs.constrained.held_mechanism import constrain as constrain
from torchsko.verbs.constrained.hold import Hold as Hold
from torchsko.verbs.coriolis import christoffel_symbols as christoffel_symbols
from torchsko.verbs.coriolis import coriolis_matrix as coriolis_matrix
from torchsko.verbs.derivatives import forward_dynamics_derivatives as forward_dynamics_derivatives
from torchsko.verbs.derivatives import inverse_dynamics_derivatives as inverse_dynamics_derivatives
from torchsko.verbs.energy import PowerBalance as PowerBalance
from torchsko.verbs.energy import centroidal_inertia as centroidal_inertia
from torchsko.verbs.energy import composite_inertias as composite_inertias
from torchsko.verbs.energy import power_balance as power_balance
from torchsko.verbs.energy import total_energy as total_energy
from torchsko.verbs.frame import Frame as Frame
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
from torchsko.verbs.frames import frame_acceleration as frame_acceleration
from torchsko.verbs.frames import frame_jacobian as frame_jacobian
from torchsko.verbs.frames import frame_jacobian_rate as frame_jacobian_rate
from torchsko.verbs.frames import frame_pose as frame_pose
from torchsko.verbs.frames import frame_velocity as frame_velocity
from torchsko.verbs.kinematics import forward_kinematics as forward_kinematics
from torchsko.verbs.loop_closing import close as close
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
from torchsko.verbs.passive_forces import PassiveForces as PassiveForces
from torchsko.verbs.passive_forces import passive_force_parts as passive_force_parts
from torchsko.verbs.regressors import drive_parameters as drive_parameters
from torchsko.verbs.regressors import drive_regressor as drive_regressor
from torchsko.verbs.regressors import inertial_parameters as inertial_parameters
from torchsko.verbs.regressors import kinetic_energy_regressor as kinetic_energy_regressor
from torchsko.verbs.regressors import momentum_regressor as momentum_regressor
from torchsko.verbs.regressors import potential_energy_regressor as potential_energy_regressor
from torchsko.verbs.regressors import torque_regressor as torque_regressor
from torchsko.verbs.regressors import wrench_regressor as wrench_regressor
from torchsko.verbs.relative import relative_acceleration as relative_acceleration
from torchsko.verbs.relative import relative_jacobian as relative_jacobian
from torchsko.verbs.relative import relative_jacobian_rate as relative_jacobian_rate
from torchsko.verbs.relative import relative_pose as relative_pose
from torchsko.verbs.relative import relative_velocity as relative_velocity
from torchsko.view import plot as plot
from torchsko.view.notebook import show as show
