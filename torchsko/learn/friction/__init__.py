"""Forces of joints besides those of rigid bodies: terms that add up, each linear in one number."""

from torchsko.learn.friction.coulomb import Asymmetric as Asymmetric
from torchsko.learn.friction.coulomb import Coulomb as Coulomb
from torchsko.learn.friction.coulomb import Loaded as Loaded
from torchsko.learn.friction.coulomb import SmoothCoulomb as SmoothCoulomb
from torchsko.learn.friction.dahl import Dahl as Dahl
from torchsko.learn.friction.lugre import LuGre as LuGre
from torchsko.learn.friction.other import Delay as Delay
from torchsko.learn.friction.other import Gain as Gain
from torchsko.learn.friction.other import Offset as Offset
from torchsko.learn.friction.other import Periodic as Periodic
from torchsko.learn.friction.other import RotorInertia as RotorInertia
from torchsko.learn.friction.ratio import Ratio as Ratio
from torchsko.learn.friction.spring import Balancer as Balancer
from torchsko.learn.friction.spring import Spring as Spring
from torchsko.learn.friction.stribeck import Stribeck as Stribeck
from torchsko.learn.friction.term import Series as Series
from torchsko.learn.friction.term import Term as Term
from torchsko.learn.friction.viscous import Turbulent as Turbulent
from torchsko.learn.friction.viscous import Viscous as Viscous

TERMS: dict[str, type[Term]] = {
    kind.__name__: kind
    for kind in (
        *(Viscous, Turbulent, Coulomb, SmoothCoulomb, Asymmetric, Loaded, Stribeck, Dahl, LuGre),
        *(Offset, RotorInertia, Spring, Balancer, Periodic, Gain, Delay, Ratio),
    )
}
"""Terms by the name that files know them by."""
