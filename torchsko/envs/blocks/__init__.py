"""Building blocks of tasks: small functions of the tensors of one environment."""

from torchsko.utils.public_names import lazy_names, names_in_stub

__getattr__, __dir__ = lazy_names(__name__, names_in_stub(__name__)[0])
