"""Multibody dynamics as a PyTorch layer, on spatial kernel operator (SKO) models.

Load a robot file, and compute batched, differentiable dynamics. See the README for conventions.
"""

from torchsko.utils import interrupts as _interrupts

if _interrupts.is_command():
    _interrupts.exit_on_interrupt()  # before the import of torch, which takes seconds

from torchsko.utils import public_names as _public

_MODULES, _NOW = _public.names_in_stub(__name__)
_find, __dir__ = _public.lazy_names(__name__, _MODULES | {"__version__": "torchsko.version"})


def __getattr__(name: str) -> object:
    """Import a public name at its first use."""
    if name == "__version__":
        from torchsko.version import version

        return version()
    return _find(name)


for _name in _NOW:
    __getattr__(_name)
