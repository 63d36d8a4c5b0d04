"""Public names of a package: listed in its stub ``__init__.pyi``, imported at their first use."""

import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pkgutil import get_data

_NAME = re.compile(r"^from (\S+) import \(?\s*(\w+) as \2\b", re.MULTILINE)
_STAR = re.compile(r"^from \w+\.(\S+) import \*", re.MULTILINE)


def names_in_stub(package: str) -> tuple[dict[str, str], list[str]]:
    """Module of each public name of a package, and the names above ``__version__`` in its stub.

    The names of a module with a star import in the stub are those that it imports ``as`` themselves.
    """

    def read(path: str) -> str:
        return (get_data(package, path) or b"").decode()

    stub = read("__init__.pyi")
    text = stub + "".join(read(m[1].replace(".", "/") + ".py") for m in _STAR.finditer(stub))
    first = _NAME.finditer(stub.partition("__version__")[0])
    return {m[2]: m[1] for m in _NAME.finditer(text)}, [m[2] for m in first]


def lazy_names(
    package: str, modules: dict[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Functions ``__getattr__`` and ``__dir__`` of a package (PEP 562) for names of other modules.

    Args:
        package: name of the package.
        modules: module of each name.

    Returns:
        ``__getattr__``, which imports a name at its first use and raises an AttributeError with the most
        similar names for one that does not exist; and ``__dir__``.
    """

    def names() -> list[str]:
        special = (name for name in vars(sys.modules[package]) if name.startswith("__"))
        return sorted({*special, *modules})

    def find(name: str) -> object:
        if name == "__all__":
            return [public for public in names() if not public.startswith("_")]
        if name not in modules:
            known = _names_inside(package, modules) | {each: each for each in names()}
            similar = [known[each] for each in get_close_matches(name, known, n=3, cutoff=0.6)]
            advice = f" Did you mean {' or '.join(map(repr, similar))}?" if similar else ""
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}.{advice}", name=name
            )
        owner = import_module(modules[name])
        value = vars(owner).get(name) or import_module(f"{owner.__name__}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    return find, names


def _names_inside(package: str, modules: dict[str, str]) -> dict[str, str]:
    """Names in the stubs of a package's public packages, as attributes of the package."""
    found: dict[str, str] = {}
    for room in (name for name, module in modules.items() if module == package):
        try:
            stub = get_data(package, f"{room}/__init__.pyi") or b""
        except FileNotFoundError:  # a module, or a package without a stub
            continue
        found |= {m[2]: f"{room}.{m[2]}" for m in _NAME.finditer(stub.decode())}
    return found
