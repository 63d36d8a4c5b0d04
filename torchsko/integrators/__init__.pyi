"""Public names of `torchsko.integrators`, which `torchsko/integrators/__init__.py` reads."""

from torchsko.integrators.adaptive_steps import dormand_prince as dormand_prince
from torchsko.integrators.binomial import Binomial as Binomial
from torchsko.integrators.event_location import stop_at as stop_at
from torchsko.integrators.finite_checks import first_nonfinite as first_nonfinite
from torchsko.integrators.implicit import SemiImplicitEuler as SemiImplicitEuler
from torchsko.integrators.integrators import advance as advance
from torchsko.integrators.limit_springs import LimitSprings as LimitSprings
from torchsko.integrators.midpoint import ImplicitMidpoint as ImplicitMidpoint
from torchsko.integrators.midpoint import Variational as Variational
