"""Multiple shooting: a log cut in windows, each moved through forward dynamics from a start of its own."""

from torchsko.identification.estimators.shooting.integrator import Forward as Forward
from torchsko.identification.estimators.shooting.shooting_estimator import Shooting as Shooting
from torchsko.identification.estimators.shooting.windows import Windows as Windows
