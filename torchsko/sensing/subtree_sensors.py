"""Readings of subtrees: center of mass, its velocity, and angular momentum about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from torchsko.errors import MechanismError, unknown_name
from torchsko.mechanism.file_data.sensor import Sensor
from torchsko.sensing.sensor_inputs import SensorInputs
from torchsko.sensing.sensor_kind import SensorKind
from torchsko.spatial.rotation import cross
from torchsko.verbs.balance import subtree_centers, subtree_masses, subtree_momenta
from torchsko.verbs.momenta import center_of_mass


class SubtreeSensors(SensorKind):
    """Sensors of the center of mass and the momentum of subtrees."""

    names: ClassVar[tuple[str, ...]] = ("subtreecom", "subtreelinvel", "subtreeangmom")

    def read(self, inputs: SensorInputs, sensors: Sequence[Sensor]) -> list[Tensor]:
        """Centers of mass [m], their velocities [m/s] and angular momenta [kg m^2/s], `[*batch, 3]` each.

        The subtree of the inertial frame is the whole mechanism.
        """
        mech, (q, qd, *_) = inputs.mech, inputs.state
        centers, masses = subtree_centers(mech, q), subtree_masses(mech)
        momenta = subtree_momenta(mech, q, qd)
        roots = [k for k, parent in enumerate(mech.parents) if parent < 0]
        whole = momenta[..., roots, :].sum(-2)
        readings = []
        for sensor in sensors:
            if sensor.target is None:
                c, h, m = center_of_mass(mech, q), whole, mech.mass.sum(-1, keepdim=True)
            else:
                if sensor.target not in mech.body_names:
                    raise MechanismError(*unknown_name("body", sensor.target, mech.body_names))
                k = mech.body_names.index(sensor.target)
                c, h, m = centers[..., k, :], momenta[..., k, :], masses[..., k, None]
            angular, linear = h.split(3, -1)
            if sensor.kind == "subtreecom":
                readings.append(c)
            elif sensor.kind == "subtreelinvel":
                readings.append(linear / m)
            else:
                readings.append(angular - cross(c, linear))
        return readings
