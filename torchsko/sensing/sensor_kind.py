"""Base class of kinds of sensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from torchsko.mechanism.file_data.sensor import Sensor
from torchsko.sensing.sensor_inputs import SensorInputs


class SensorKind(ABC):
    """Kinds of sensors that are read together, listed in `torchsko.sensing.sensors.KINDS`.

    Attributes:
        names: names of the kinds, each with an entry of
            `torchsko.mechanism.file_data.sensor.TARGETS`.
        needs_acceleration: whether readings depend on the acceleration.
        needs_forces: whether readings depend on forces of contacts and constraints.
    """

    names: ClassVar[tuple[str, ...]]
    needs_acceleration: ClassVar[bool] = False
    needs_forces: ClassVar[bool] = False

    @abstractmethod
    def read(self, inputs: SensorInputs, sensors: Sequence[Sensor]) -> list[Tensor]:
        """Readings of all sensors of these kinds, `[*batch, size]` each."""
