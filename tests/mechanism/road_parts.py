"""Classes whose attributes are the fields of a robot."""

from torchsko.mechanism.file_data.actuator import Actuator, FileActuators
from torchsko.mechanism.file_data.file_metadata import Closure, Coupled, FileMetadata, Keyframe
from torchsko.mechanism.file_data.sensor import Sensor, SensorFrame
from torchsko.mechanism.file_data.solver_options import SolverOptions
from torchsko.mechanism.file_data.tendon import Tendon
from torchsko.mechanism.geometry import Geometry, Pair, Shape, Surface
from torchsko.shapes.candidate_points import ConvexHull
from torchsko.shapes.height_field import HeightField
from torchsko.shapes.mesh import Triangles

PARTS = (
    FileMetadata, SolverOptions, Keyframe, Closure, Coupled, FileActuators, Actuator, Sensor, SensorFrame,
    Tendon, Geometry, Pair, Shape, Surface, HeightField, Triangles, ConvexHull,
)  # fmt: skip
"""Classes whose attributes are the fields of a robot besides its tensors."""
