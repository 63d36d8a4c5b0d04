"""Reads of clocks, files, the environment and random generators during an evaluation of a function."""

from __future__ import annotations

import gc
import os
import pickle
import random
import sys
import threading
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

import numpy as np

from torchsko.fused.tracing.object_graph import PACKAGES, ObjectGraph, is_library, names_in

_CLOCKS = frozenset(
    "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time thread_time "
    "localtime gmtime now utcnow today".split()
)
_NAMES = _CLOCKS | set(
    "open environ getenv urandom random randint randrange uniform gauss choice choices shuffle sample load "
    "loadtxt fromfile genfromtxt read_text read_bytes strftime ctime uuid1 uuid4 token_bytes".split()
)
"""Names of functions that may lead to such a read."""
_READERS_OF_FILES = ("serialization.py", "npyio.py", "_npyio_impl.py")
"""Ends of the names of library files that open a file of the user's."""
_HARMLESS = ("logging/__init__.py", "warnings.py", "linecache.py", "traceback.py", "threading.py")
"""Parts of the standard library that read clocks and files without passing the result on."""
_ENVIRONMENT = type(os.environ).__getitem__.__code__
_GENERATORS = (np.random.Generator, np.random.RandomState)


class ImpureReads:
    """Notes reads that give another result each time, while it is entered.

    Python's profiling hook sees the calls, unless a profiler uses it. It does not see those of NumPy's
    generators, whose states are compared.

    Args:
        fn: the function that is evaluated.

    Attributes:
        reads: names of the functions that read clocks, files and the environment.
        draws: names of the random generators from which numbers were drawn.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        graph = ObjectGraph(fn)
        objects = graph.objects()
        kinds = (*_GENERATORS, random.Random)
        names = {id(x): graph.name(graph.path_to(x)) for x in objects if isinstance(x, kinds)}
        self._names = names
        self._held = [(names[id(x)], x) for x in objects if isinstance(x, _GENERATORS)]
        named = frozenset().union(
            *(names_in(x.__code__) for x in objects if isinstance(x, FunctionType))
        )
        # The hook doubles the time of an evaluation.
        self._can_read = not named.isdisjoint(_NAMES)
        # Another thread may draw from NumPy's global generator.
        names_random = "random" in named
        if threading.active_count() == 1 or names_random:
            self._held.append(("numpy.random", np.random.mtrand._rand))  # pyright: ignore
        self.reads: list[str] = []
        self.draws: list[str] = []

    def __enter__(self) -> ImpureReads:
        self._before = [(name, _state(x)) for name, x in self._held]
        # Callbacks of the garbage collector may read clocks.
        self._had_gc = gc.isenabled()
        gc.disable()
        self._is_profiling = self._can_read and sys.getprofile() is None
        if self._is_profiling:
            sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_profiling:
            sys.setprofile(None)
        if self._had_gc:
            gc.enable()
        after = [_state(x) for _, x in self._held]
        pairs = zip(self._before, after, strict=True)
        self.draws += [name for (name, state), now in pairs if state != now]

    def _profile(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call" and frame.f_code is _ENVIRONMENT and _is_of_user(frame):
            self.reads.append("os.environ")
        if event != "c_call":
            return
        name, owner = called.__name__, getattr(called, "__self__", None)
        if isinstance(owner, random.Random):
            self.draws.append(self._names.get(id(owner), "random"))
        elif name == "urandom":
            self.draws.append("os.urandom")
        elif name in _CLOCKS and getattr(called, "__module__", None) in ("time", None):
            if _is_of_user(frame):
                self.reads.append(called.__qualname__)
        elif name == "open" and getattr(called, "__module__", None) in ("io", "_io"):
            if _is_of_user(frame):
                self.reads.append("open")


def _is_of_user(frame: FrameType | None) -> bool:
    """True if a user's function made a call, if through the standard library, and no import runs."""
    is_of_user = None
    while frame is not None:
        file = frame.f_code.co_filename
        if "importlib" in file:
            return False
        if is_of_user is None and (file.endswith(_READERS_OF_FILES) or not is_library(file)):
            is_of_user = True
        elif is_of_user is None and (file.startswith(PACKAGES) or file.endswith(_HARMLESS)):
            is_of_user = False
        frame = frame.f_back
    return bool(is_of_user)


def _state(x: Any) -> bytes:
    return pickle.dumps(
        x.bit_generator.state if isinstance(x, np.random.Generator) else x.get_state()
    )
