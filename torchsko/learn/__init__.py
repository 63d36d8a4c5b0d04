"""Learning physical parameters: parametrizations that keep them physical, and an `nn.Module`."""

from torchsko.learn.divergence import inertia_divergence as inertia_divergence
from torchsko.learn.excitation import Trajectory as Trajectory
from torchsko.learn.excitation import exciting_trajectory as exciting_trajectory
from torchsko.learn.identify import identify as identify
from torchsko.learn.parametrizations import Bounded as Bounded
from torchsko.learn.parametrizations import Free as Free
from torchsko.learn.parametrizations import InertiaLogCholesky as InertiaLogCholesky
from torchsko.learn.parametrizations import Parametrization as Parametrization
from torchsko.learn.parametrizations import Positive as Positive
from torchsko.learn.parametrizations import Rotation as Rotation
