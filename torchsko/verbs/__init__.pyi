"""Public names of `torchsko.verbs`, which `torchsko/verbs/__init__.py` reads."""

from torchsko.verbs.base_parameters import BaseParameters as BaseParameters
from torchsko.verbs.centroidal_derivatives import CentroidalDerivatives as CentroidalDerivatives
from torchsko.verbs.energy import PowerBalance as PowerBalance
from torchsko.verbs.passive_forces import PassiveForces as PassiveForces
