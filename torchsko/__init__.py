"""Multibody dynamics as a PyTorch layer, on spatial kernel operator (SKO) models.

A robot file goes in; batched, differentiable dynamics come out. See the README for conventions.
"""

from torchsko import algorithms as algorithms
from torchsko import learn as learn
from torchsko import plot as plot
from torchsko import robots as robots
from torchsko.algebra.factorisation import innovations as innovations
from torchsko.algebra.innovations import Innovations as Innovations
from torchsko.algebra.member_length import member_length_matrix as member_length_matrix
from torchsko.algebra.member_length import member_length_operator as member_length_operator
from torchsko.algebra.model import SKOModel as SKOModel
from torchsko.algebra.partition import partition as partition
from torchsko.algebra.subgraph import aggregation_subgraph as aggregation_subgraph
from torchsko.algebra.subgraph import path_induced_nodes as path_induced_nodes
from torchsko.algebra.transform import aggregate as aggregate
from torchsko.algebra.transform import aggregate_segments as aggregate_segments
from torchsko.algebra.transform import embed as embed
from torchsko.algebra.tree import Tree as Tree
from torchsko.assemble import assemble as assemble
from torchsko.builder import MechanismBuilder as MechanismBuilder
from torchsko.builder import build_mechanism as build_mechanism
from torchsko.builder import load as load
from torchsko.coriolis import coriolis_matrix as coriolis_matrix
from torchsko.dynamics import bias_force as bias_force
from torchsko.dynamics import forward_dynamics as forward_dynamics
from torchsko.dynamics import hybrid_dynamics as hybrid_dynamics
from torchsko.dynamics import inverse_dynamics as inverse_dynamics
from torchsko.dynamics import mass_matrix as mass_matrix
from torchsko.dynamics import passive_force as passive_force
from torchsko.errors import CompilerError as CompilerError
from torchsko.errors import FitError as FitError
from torchsko.errors import FusedError as FusedError
from torchsko.errors import MechanismError as MechanismError
from torchsko.errors import MissingExtraError as MissingExtraError
from torchsko.errors import NonFiniteError as NonFiniteError
from torchsko.errors import RobotFileError as RobotFileError
from torchsko.errors import ShapeError as ShapeError
from torchsko.errors import SingularError as SingularError
from torchsko.errors import TorchskoError as TorchskoError
from torchsko.errors import TreeError as TreeError
from torchsko.fused.api import fuse as fuse
from torchsko.fused.call import FusedCall as FusedCall
from torchsko.fused.mechanism import FusedMechanism as FusedMechanism
from torchsko.hinges import checked as checked
from torchsko.kinematics import Pose as Pose
from torchsko.kinematics import forward_kinematics as forward_kinematics
from torchsko.kinematics import frame_jacobian as frame_jacobian
from torchsko.kinematics import frame_pose as frame_pose
from torchsko.learn.module import Dynamics as Dynamics
from torchsko.mechanism.joints.compound import Slide as Slide
from torchsko.mechanism.joints.compound import Turn as Turn
from torchsko.mechanism.joints.configuration import difference as difference
from torchsko.mechanism.joints.configuration import integrate as integrate
from torchsko.mechanism.joints.kind import JointType as JointType
from torchsko.mechanism.joints.registry import register_joint as register_joint
from torchsko.mechanism.mechanism import Mechanism as Mechanism
from torchsko.operational_space import (
    consistent_jacobian_inverse as consistent_jacobian_inverse,
)
from torchsko.operational_space import (
    operational_space_compliance as operational_space_compliance,
)
from torchsko.operational_space import operational_space_inertia as operational_space_inertia
from torchsko.regressors import inertial_parameters as inertial_parameters
from torchsko.regressors import torque_regressor as torque_regressor
from torchsko.rollout.finite import first_nonfinite as first_nonfinite
from torchsko.rollout.rollout import rollout as rollout
from torchsko.version import version as _version

__version__ = _version()
