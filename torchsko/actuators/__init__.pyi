"""Public names of `torchsko.actuators`, which `torchsko/actuators/__init__.py` reads."""

from torchsko.actuators.actuated_control import ActuatedControl as ActuatedControl
from torchsko.actuators.actuator_forces import actuate as actuate
from torchsko.actuators.actuators import Actuators as Actuators
from torchsko.actuators.controller import Controller as Controller
from torchsko.actuators.delay import Delay as Delay
from torchsko.actuators.file_actuators import actuators_of as actuators_of
from torchsko.actuators.file_tendons import tendons_of as tendons_of
from torchsko.actuators.tendons import Tendons as Tendons
from torchsko.integrators.motor import PID as PID
from torchsko.integrators.motor import Motor as Motor
from torchsko.integrators.motor import MotorControl as MotorControl
from torchsko.io.urdf.urdf_transmissions import Transmission as Transmission
from torchsko.io.urdf.urdf_transmissions import transmissions_of as transmissions_of
from torchsko.mechanism.file_data.actuator import Actuator as Actuator
from torchsko.mechanism.file_data.tendon import Tendon as Tendon
