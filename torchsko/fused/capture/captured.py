"""Tensors that a function captures, as inputs of its kernels, and Python values, which are constants.

`Captured` reads the tensors anew at each call, and compares the Python values with those at the time of the
trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.calls.memory_snapshot import MemorySnapshot
from torchsko.fused.tracing.clean import assert_at_runtime, is_wrapped, outside_transforms
from torchsko.fused.tracing.object_graph import ObjectGraph, Path, follow
from torchsko.fused.tracing.watch import constants_of
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.dtype import is_traced_as


@dataclass(frozen=True)
class Capture:
    """A tensor or a mechanism that a function reads and that is not one of its arguments.

    Attributes:
        name: its path in words, for messages.
        path: the steps from the function to it.
        shape: shape of a tensor.
        dtype: dtype of a tensor.
        is_input: whether it is an input of the kernels; otherwise it is a constant.
    """

    name: str
    path: Path
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    is_input: bool = False


def fixed_tensors(mech: Mechanism) -> list[Tensor]:
    """The tensors of a captured mechanism that are constants: all that are not differentiated."""
    return [x for x in constants_of(mech) if not (x.requires_grad or is_wrapped(x))]


class Changes(NamedTuple):
    """Python values and constant tensors that differ from those of the trace.

    Attributes:
        name: the first of them, in words.
        paths: the paths of the Python values; none where a tensor or a mechanism has changed.
    """

    name: str
    paths: frozenset[Path] = frozenset()


class Captured:
    """Captured tensors and values of a function, compared at each call with those of its trace.

    Args:
        fn: the function.
        captures: its captured tensors and mechanisms.
        changing: paths of Python values that are not compared.
        mechanism: tensors of the kernels' mechanism that are constants.

    Attributes:
        inputs: the captures that are inputs of the kernels.
        constants: captured integers, then tensors of captured mechanisms, with the names of the captures.
        ignored: paths of Python values that are not compared.
        tensors: the inputs' tensors at the last call of `read`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        captures: Sequence[Capture],
        changing: frozenset[Path],
        mechanism: Sequence[Tensor],
    ) -> None:
        self.inputs = tuple(c for c in captures if c.is_input)
        self._fn, self._changing, self._mechanism = fn, changing, tuple(mechanism)
        self._integers = tuple(c for c in captures if c.dtype is not None and not c.is_input)
        self._mechanisms = tuple(c for c in captures if c.dtype is None)
        self.ignore(())

    def ignore(self, paths: Iterable[Path]) -> None:
        """Compare with what there is now, without these paths."""
        self.ignored = self._changing.union(paths)
        self._take(self._new_graph())

    def _new_graph(self) -> ObjectGraph:
        captured = [follow(self._fn, c.path) for c in self.inputs]
        return ObjectGraph(
            self._fn, frozenset(map(id, self._mechanism)), frozenset(map(id, captured))
        )

    def _take(self, graph: ObjectGraph) -> None:
        """Compare with this graph from now on."""
        self._graph, self.constants = graph, self._constants_now()
        self.tensors = tuple(follow(self._fn, c.path) for c in self.inputs)
        tensors = [x for _, x in self.constants]
        self._copies, self._has_equal_memory = outside_transforms(
            lambda: ([x.detach().clone() for x in tensors], MemorySnapshot(tensors).is_unchanged)
        )
        self._guards = [
            (graph.name(path), path, x)
            for path, x in graph.values.items()
            if isinstance(x, (bool, int, float, str)) and path not in self.ignored
            if not any(kind == "vars" for kind, _ in path)
        ]

    def _constants_now(self) -> list[tuple[str, Tensor]]:
        integers = [(c.name, follow(self._fn, c.path)) for c in self._integers]
        held = [(c.name, follow(self._fn, c.path)) for c in self._mechanisms]
        of_mechanisms = [(name, x) for name, mech in held for x in fixed_tensors(mech)]
        return [(name, x) for name, x in (*integers, *of_mechanisms) if not is_wrapped(x)]

    def read(self) -> tuple[Tensor, ...] | Changes:
        """The inputs' tensors as they are now, or the constants that have changed.

        Raises:
            FusedError: a tensor does not fit the kernels.
        """
        if torch.compiler.is_compiling():
            return self._read_in_compiler()
        for name, x in self.constants:
            if x.requires_grad:
                return Changes(name)
        old = self._graph
        if old.is_unchanged() and self._has_equal_memory():
            return self.tensors
        graph = self._new_graph()
        if changed := old.changes(graph, self.ignored):
            values = [p for p in changed if not isinstance(old.values[p], (Tensor, Mechanism))]
            return Changes(old.name_of_change(changed[0], graph), frozenset(values))
        for copy, (name, x) in zip(self._copies, self._constants_now(), strict=True):
            if x.shape != copy.shape or not torch.equal(x, copy):
                return Changes(name)
        for capture in self.inputs:
            _check_fit(capture, follow(self._fn, capture.path))
        self._take(graph)
        return self.tensors

    def _read_in_compiler(self) -> tuple[Tensor, ...] | Changes:
        """The inputs read step by step, which torch.compile guards; see `read`."""
        for name, path, old in self._guards:
            now = follow(self._fn, path)
            if type(now) is not type(old) or now != old:
                return Changes(name)
        for capture, copy in zip(self._integers, self._copies, strict=False):
            assert_at_runtime(
                (follow(self._fn, capture.path) == copy).all(),
                f"{capture.name} has changed, which kernels hold constant.",
            )
        tensors = []
        for capture in self.inputs:
            x = follow(self._fn, capture.path)
            if not isinstance(x, Tensor):
                return Changes(capture.name)
            _check_fit(capture, x)
            tensors.append(x)
        return tuple(tensors)


def _check_fit(capture: Capture, x: Tensor) -> None:
    has_dtype = x.dtype == capture.dtype or is_traced_as(x, cast(torch.dtype, capture.dtype))
    if not has_dtype or x.shape != capture.shape:
        raise FusedError(
            f"{capture.name} is now {tuple(x.shape)} of {x.dtype}.",
            f"The kernels were made for {capture.shape} of {capture.dtype}.",
            "Call retrace() of the fused function, or ts.fuse again.",
        )
