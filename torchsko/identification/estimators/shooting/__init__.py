"""Multiple shooting: a log cut in windows, each moved through forward dynamics from a start of its own."""

from torchsko.identification.estimators.shooting.integrator import ForwardModel as ForwardModel
from torchsko.identification.estimators.shooting.shooting_estimator import (
    ShootingEstimator as ShootingEstimator,
)
from torchsko.identification.estimators.shooting.windows import Windows as Windows
