"""Learning physical parameters: from logs, by gradients, and as an `nn.Module`."""

from torchsko.learn.divergence import inertia_divergence as inertia_divergence
from torchsko.learn.excitation import Trajectory as Trajectory
from torchsko.learn.excitation import exciting_trajectory as exciting_trajectory
from torchsko.learn.fitted import Fit as Fit
from torchsko.learn.fitting import fit as fit
from torchsko.learn.identify import identify as identify
from torchsko.learn.log import Log as Log
from torchsko.learn.network import Network as Network
from torchsko.learn.optimal import optimal_trajectory as optimal_trajectory
from torchsko.learn.parametrizations import Bounded as Bounded
from torchsko.learn.parametrizations import Free as Free
from torchsko.learn.parametrizations import InertiaLogCholesky as InertiaLogCholesky
from torchsko.learn.parametrizations import Parametrization as Parametrization
from torchsko.learn.parametrizations import Positive as Positive
from torchsko.learn.parametrizations import Rotation as Rotation
from torchsko.learn.payload import Payload as Payload
from torchsko.learn.payload import payload as payload
