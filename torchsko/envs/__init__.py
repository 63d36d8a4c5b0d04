"""Environments for policies: tasks, batched steps with gradients, and wrappers for other libraries."""

from torchsko.utils.public_names import lazy_names, names_in_stub

__getattr__, __dir__ = lazy_names(__name__, names_in_stub(__name__)[0])
