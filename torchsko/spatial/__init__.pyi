"""Public names of `torchsko.spatial`, which `torchsko/spatial/__init__.py` reads."""

from torchsko.spatial.rigid_transform import pose_exp as pose_exp
from torchsko.spatial.rigid_transform import pose_log as pose_log
from torchsko.spatial.rotation import matrix_exp as matrix_exp
from torchsko.spatial.rotation import matrix_log as matrix_log
from torchsko.spatial.rotation import matrix_to_quaternion as matrix_to_quaternion
from torchsko.spatial.rotation import matrix_to_rpy as matrix_to_rpy
from torchsko.spatial.rotation import quaternion_exp as quaternion_exp
from torchsko.spatial.rotation import quaternion_log as quaternion_log
from torchsko.spatial.rotation import quaternion_multiply as quaternion_multiply
from torchsko.spatial.rotation import quaternion_to_matrix as quaternion_to_matrix
