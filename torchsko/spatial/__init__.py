"""Rotations, rigid transforms, spatial vectors and inertias; nothing here knows about trees."""

from torchsko.utils.public_names import lazy_names, names_in_stub

__getattr__, __dir__ = lazy_names(__name__, names_in_stub(__name__)[0])
