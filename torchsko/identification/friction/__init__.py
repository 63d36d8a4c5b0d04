"""Joint forces besides those of rigid bodies: friction, springs and sensor errors, each linear in one number.

Every module of this folder is imported, so that `term_classes` finds a term that a new file defines.
"""

import importlib
import pkgutil

from torchsko.identification.friction.coulomb import Asymmetric as Asymmetric
from torchsko.identification.friction.coulomb import Coulomb as Coulomb
from torchsko.identification.friction.coulomb import Loaded as Loaded
from torchsko.identification.friction.coulomb import SmoothCoulomb as SmoothCoulomb
from torchsko.identification.friction.dahl import Dahl as Dahl
from torchsko.identification.friction.lugre import LuGre as LuGre
from torchsko.identification.friction.sensor_terms import Delay as Delay
from torchsko.identification.friction.sensor_terms import Gain as Gain
from torchsko.identification.friction.sensor_terms import Offset as Offset
from torchsko.identification.friction.sensor_terms import Periodic as Periodic
from torchsko.identification.friction.sensor_terms import Ratio as Ratio
from torchsko.identification.friction.sensor_terms import RotorInertia as RotorInertia
from torchsko.identification.friction.spring import Balancer as Balancer
from torchsko.identification.friction.spring import Spring as Spring
from torchsko.identification.friction.stribeck import Stribeck as Stribeck
from torchsko.identification.friction.stribeck import StribeckCoulomb as StribeckCoulomb
from torchsko.identification.friction.term import Term as Term
from torchsko.identification.friction.term import TermInput as TermInput
from torchsko.identification.friction.term import term_classes as term_classes
from torchsko.identification.friction.viscous import Turbulent as Turbulent
from torchsko.identification.friction.viscous import Viscous as Viscous

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
