"""Multiple shooting: a log cut in windows, each moved through forward dynamics from a start of its own."""

from torchsko.learn.shooting.estimate import Shooting as Shooting
from torchsko.learn.shooting.forward import Forward as Forward
from torchsko.learn.shooting.windows import Windows as Windows
