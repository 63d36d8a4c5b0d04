"""Public names of torchsko: the only list of them, which type checkers and `torchsko/__init__.py` read."""

# Imported together with the package.
from torchsko import algorithms as algorithms
from torchsko import errors as errors
from torchsko import robots as robots
from torchsko.algebra.recursions.factorization import innovations as innovations
from torchsko.bridge.assemble import assemble as assemble
from torchsko.bridge.body_poses import Pose as Pose
from torchsko.bridge.singular_hinges import mark_singular_joints as mark_singular_joints
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
from torchsko.mechanism.joints.kind import JointType as JointType
from torchsko.mechanism.manifold import difference as difference
from torchsko.mechanism.manifold import expand as expand
from torchsko.mechanism.manifold import expand_acceleration as expand_acceleration
from torchsko.mechanism.manifold import expand_velocity as expand_velocity
from torchsko.mechanism.manifold import initial_state as initial_state
from torchsko.mechanism.manifold import integrate as integrate
from torchsko.mechanism.mechanism import Mechanism as Mechanism
from torchsko.mechanism.simulation_state import State as State
from torchsko.mechanism.simulation_state import reset as reset
from torchsko.verbs.dynamics import bias_force as bias_force
from torchsko.verbs.dynamics import forward_dynamics as forward_dynamics
from torchsko.verbs.dynamics import hybrid_dynamics as hybrid_dynamics
from torchsko.verbs.dynamics import inverse_dynamics as inverse_dynamics
from torchsko.verbs.dynamics import mass_matrix as mass_matrix
from torchsko.verbs.passive_forces import passive_force as passive_force

__version__: str

# Imported at their first use: robot files, compiled kernels, learning, control, less common verbs.
from torchsko import actuators as actuators
from torchsko import algebra as algebra
from torchsko import constraints as constraints
from torchsko import contact as contact
from torchsko import control as control
from torchsko import envs as envs
from torchsko import fused as fused
from torchsko import identification as identification
from torchsko import integrators as integrators
from torchsko import learn as learn
from torchsko import spatial as spatial
from torchsko import verbs as verbs
from torchsko import view as view
from torchsko.api.verb_table import *  # noqa: F403 - the verbs
from torchsko.bridge.conventions.conversion import Conventions as Conventions
from torchsko.bridge.conventions.conversion import conventions as conventions
from torchsko.contact.contact_model import ContactModel as ContactModel
from torchsko.fused.fuse import fuse as fuse
from torchsko.implicit.loop import iterate as iterate
from torchsko.integrators.contact_integrator import ContactStep as ContactStep
from torchsko.integrators.trajectory import Trajectory as Trajectory
from torchsko.io.builder import MechanismBuilder as MechanismBuilder
from torchsko.io.finite_elements.finite_element_model import (
    FiniteElementModel as FiniteElementModel,
)
from torchsko.io.finite_elements.read_calculix import load_finite_elements as load_finite_elements
from torchsko.io.loading.build import build_mechanism as build_mechanism
from torchsko.io.loading.files import load as load
from torchsko.io.loading.mujoco_models import from_mujoco as from_mujoco
from torchsko.learn.dynamics_module import Dynamics as Dynamics
from torchsko.mechanism.file_data.sensor import Sensor as Sensor
from torchsko.mechanism.flexible.flexible_body import FlexibleBody as FlexibleBody
from torchsko.mechanism.flexible.marker import Marker as Marker
from torchsko.mechanism.joints.compound import Slide as Slide
from torchsko.mechanism.joints.compound import Turn as Turn
from torchsko.mechanism.joints.registry import register_joint as register_joint
from torchsko.verbs.frame import Frame as Frame
from torchsko.verbs.held.held_rows import HeldFrame as HeldFrame
from torchsko.view import plot as plot
from torchsko.view.notebook import show as show
