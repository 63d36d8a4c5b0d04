"""Learnable mechanisms: `nn.Module`s, parametrizations that stay physical, training, divergences."""

from torchsko.learn.divergence import inertia_divergence as inertia_divergence
from torchsko.learn.parametrizations import Bounded as Bounded
from torchsko.learn.parametrizations import Free as Free
from torchsko.learn.parametrizations import InertiaLogCholesky as InertiaLogCholesky
from torchsko.learn.parametrizations import Parametrization as Parametrization
from torchsko.learn.parametrizations import Positive as Positive
from torchsko.learn.parametrizations import Rotation as Rotation
from torchsko.learn.train_layer import train as train
