"""Multibody dynamics as a PyTorch layer, on spatial kernel operator (SKO) models.

Load a robot file, and compute batched, differentiable dynamics. See the README for conventions.
"""

from importlib import import_module

from torchsko.utils import interrupts as _interrupts

if _interrupts.is_command():
    _interrupts.exit_on_interrupt()  # before the import of torch, which takes seconds


def _read_stub() -> tuple[list[str], dict[str, str]]:
    """Read ``__init__.pyi``: the names to import now, and the module of every public name."""
    import re
    from pkgutil import get_data

    def read(path: str) -> str:
        return (get_data("torchsko", path) or b"").decode()

    imported_now, _, later = read("__init__.pyi").partition("__version__")
    later += read("api/verb_table.py")  # the stub has a star import of it
    pattern = re.compile(r"^from (\S+) import \(?\s*(\w+) as \2\b", re.MULTILINE)
    now = {m[2]: m[1] for m in pattern.finditer(imported_now)}
    return list(now), now | {m[2]: m[1] for m in pattern.finditer(later)}


_NOW, _MODULES = _read_stub()


def __getattr__(name: str) -> object:
    """Import a public name at its first use."""
    if name == "__version__":
        value = import_module("torchsko.version").version()
    elif name == "__all__":
        value = [public for public in __dir__() if not public.startswith("_")]
    elif name not in _MODULES:
        raise AttributeError(_unknown_attribute(name), name=name)
    else:
        owner = import_module(_MODULES[name])
        value = vars(owner).get(name) or import_module(f"{owner.__name__}.{name}")
    globals()[name] = value
    return value


def _unknown_attribute(name: str) -> str:
    """Message for a name that is not public, with the most similar ones."""
    from difflib import get_close_matches

    similar = get_close_matches(name, __dir__(), n=3, cutoff=0.7)
    advice = f" Did you mean {' or '.join(map(repr, similar))}?" if similar else ""
    return f"module {__name__!r} has no attribute {name!r}.{advice}"


def __dir__() -> list[str]:
    """The public names, including those that are not imported yet."""
    return sorted(
        {*(name for name in globals() if name.startswith("__")), *_MODULES, "__version__"}
    )


for _name in _NOW:
    __getattr__(_name)
