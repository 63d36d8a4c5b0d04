"""Multiple shooting: simulation of consecutive windows from estimated initial states."""

from torchsko.identification.estimators.shooting.integrator import ForwardModel as ForwardModel
from torchsko.identification.estimators.shooting.shooting_estimator import (
    ShootingEstimator as ShootingEstimator,
)
from torchsko.identification.estimators.shooting.windows import Windows as Windows
