"""Forces of joints besides those of rigid bodies: terms that add up, each linear in one number."""

from torchsko.identification.friction.coulomb import Asymmetric as Asymmetric
from torchsko.identification.friction.coulomb import Coulomb as Coulomb
from torchsko.identification.friction.coulomb import Loaded as Loaded
from torchsko.identification.friction.coulomb import SmoothCoulomb as SmoothCoulomb
from torchsko.identification.friction.dahl import Dahl as Dahl
from torchsko.identification.friction.lugre import LuGre as LuGre
from torchsko.identification.friction.ratio import Ratio as Ratio
from torchsko.identification.friction.sensor_terms import Delay as Delay
from torchsko.identification.friction.sensor_terms import Gain as Gain
from torchsko.identification.friction.sensor_terms import Offset as Offset
from torchsko.identification.friction.sensor_terms import Periodic as Periodic
from torchsko.identification.friction.sensor_terms import RotorInertia as RotorInertia
from torchsko.identification.friction.spring import Balancer as Balancer
from torchsko.identification.friction.spring import Spring as Spring
from torchsko.identification.friction.stribeck import Stribeck as Stribeck
from torchsko.identification.friction.term import Series as Series
from torchsko.identification.friction.term import Term as Term
from torchsko.identification.friction.viscous import Turbulent as Turbulent
from torchsko.identification.friction.viscous import Viscous as Viscous

TERMS: dict[str, type[Term]] = {
    kind.__name__: kind
    for kind in (
        *(Viscous, Turbulent, Coulomb, SmoothCoulomb, Asymmetric, Loaded, Stribeck, Dahl, LuGre),
        *(Offset, RotorInertia, Spring, Balancer, Periodic, Gain, Delay, Ratio),
    )
}
"""Terms by the name that files know them by."""
