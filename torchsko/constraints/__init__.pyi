"""Public names of `torchsko.constraints`, which `torchsko/constraints/__init__.py` reads."""

from torchsko.mechanism.file_data.file_metadata import Closure as Closure
from torchsko.sensing.equality_forces import equality_forces as equality_forces
from torchsko.verbs.held.held_mechanism import HeldMechanism as HeldMechanism
