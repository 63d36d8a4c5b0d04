"""System identification: from logs of robots to robots, with error bars."""

from torchsko.identification.excitation.fourier import Trajectory as Trajectory
from torchsko.identification.excitation.fourier import exciting_trajectory as exciting_trajectory
from torchsko.identification.excitation.optimal_trajectory import (
    optimal_trajectory as optimal_trajectory,
)
from torchsko.identification.fit import identify as identify
from torchsko.identification.logs.log import Log as Log
from torchsko.identification.results.payload import Payload as Payload
from torchsko.identification.results.payload import payload as payload
from torchsko.identification.results.result import Fit as Fit
