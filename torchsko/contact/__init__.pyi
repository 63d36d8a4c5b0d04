"""Public names of `torchsko.contact`, which `torchsko/contact/__init__.py` reads."""

from torchsko.contact.points import Contacts as Contacts
from torchsko.contact.randomize import RandomRobots as RandomRobots
from torchsko.contact.smooth_contact import SmoothContact as SmoothContact
from torchsko.contact.soft_dynamics import ContactDynamics as ContactDynamics
from torchsko.contact.soft_dynamics import contact_dynamics as contact_dynamics
from torchsko.sensing.contact_wrenches import contact_wrenches as contact_wrenches
