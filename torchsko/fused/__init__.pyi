"""Public names of `torchsko.fused`, which `torchsko/fused/__init__.py` reads."""

from torchsko.fused.fused_call import FusedCall as FusedCall
from torchsko.fused.fused_mechanism import FusedMechanism as FusedMechanism
