"""BARD (PyTorch), where it installs: no package of that name is on PyPI."""

from __future__ import annotations

from cases import Case, Entry, MissingPeerError

NAME = "BARD"


def enter(case: Case) -> list[Entry]:
    """Nothing yet: the import decides."""
    try:
        import bard  # noqa: F401
    except ImportError:
        raise MissingPeerError("does not install: no such package on PyPI") from None
    raise MissingPeerError("installed, but this suite has no entries for it")
