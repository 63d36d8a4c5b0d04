"""Tensors that a function captures, as inputs of its kernels, and Python values, which are constants.

`discover` evaluates the function once and finds the tensors. `Captured` reads them anew at each call, and
compares the Python values with those at the time of the trace.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from torchsko.errors import FusedError
from torchsko.fused.capture.watch import PASS_IT, Watch, constants_of
from torchsko.fused.tracing.clean import (
    assert_at_runtime,
    concrete,
    is_wrapped,
    outside_transforms,
)
from torchsko.fused.tracing.content import Known, digest_of_content
from torchsko.fused.tracing.object_graph import ObjectGraph, Path, follow
from torchsko.fused.tracing.swap import Swap
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.dtype import is_traced_as
from torchsko.utils.traced_tensor import RunsEqualCallsOnce

_log = logging.getLogger("torchsko")


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


@dataclass(frozen=True)
class Changes:
    """Python values and constant tensors that differ from those of the trace.

    Attributes:
        name: the first of them, in words.
        paths: the paths of the Python values; none where a tensor has changed.
    """

    name: str
    paths: frozenset[Path] = frozenset()


class _Evaluation(Swap, RunsEqualCallsOnce):
    """Mode of an evaluation whose values do not matter."""

    def __init__(self, old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
        super().__init__(old, new)
        self._mechanisms: Known = {}
        self._results: dict[Any, tuple[Any, tuple[Tensor, ...]]] = {}

    def results_of(
        self, fn: Callable[..., Sequence[Tensor]], args: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Results of a function, of an earlier one if its content is equal."""
        shapes = [(str(x.dtype), tuple(x.shape)) for x in args]
        key = digest_of_content(fn, shapes, known=self._mechanisms, is_captured=self.is_outside)
        if key is None or key not in self._results:
            found = tuple(fn(*args))
            if key is None:
                return found
            self._results[key] = fn, found  # the function keeps ids of captured tensors valid
        return tuple(x.clone() for x in self._results[key][1])


def discover(
    fn: Callable[..., Any],
    run: Callable[[], Any],
    known: Iterable[Tensor],
    dtype: torch.dtype,
    wrapped: Sequence[Tensor] = (),
) -> tuple[Any, tuple[Capture, ...]]:
    """Evaluate a function once and find the tensors that it captures.

    Args:
        fn: the function.
        run: calls it.
        known: its arguments, and tensors that are constants by choice.
        dtype: dtype of the kernels.
        wrapped: captured tensors wrapped by torch.func, whose values take their place in the run.

    Returns:
        The result of the run, and the captures.

    Raises:
        FusedError: a random draw, a write into a captured tensor, or a tensor that cannot be an input.
    """
    values = [concrete(x).reshape(-1, *x.shape)[0] for x in wrapped]
    originals = {id(value): x for value, x in zip(values, wrapped, strict=True)}
    swap = _Evaluation(wrapped, values)
    watch = Watch(known, swap, dtype=dtype)
    with watch, swap:
        result = run()
    if not watch.met:
        return result, ()
    graph = ObjectGraph(fn)
    owner = {
        id(x): mech
        for mech in graph.objects()
        if isinstance(mech, Mechanism)
        for x in constants_of(mech)
        if not (x.requires_grad or is_wrapped(x))
    }
    found: dict[int, Capture] = {}
    for met in watch.met.values():
        x = originals.get(id(met), met)
        captured = owner.get(id(x), x)
        if id(captured) not in found:
            found[id(captured)] = _capture(graph, captured, dtype)
    return result, tuple(found.values())


def _capture(graph: ObjectGraph, x: Any, dtype: torch.dtype) -> Capture:
    if not graph.reaches(x):
        raise FusedError(
            f"the function reads a tensor of shape {tuple(x.shape)} to which no path was found, or which it "
            "has replaced meanwhile.",
            "A kernel reads captured tensors at each call, through names, attributes and containers.",
            PASS_IT,
        )
    path = graph.path_to(x)
    name = graph.name(path)
    if isinstance(x, Mechanism):
        return Capture(name, path)
    shape = tuple(x.shape)
    if not x.is_floating_point() and not x.is_complex():
        return Capture(name, path, shape, x.dtype)
    if torch.promote_types(x.dtype, dtype) != dtype:
        raise FusedError(
            f"{name} is {x.dtype}, the mechanism {dtype}.",
            "A kernel computes in one dtype, and captured tensors are not rounded to it.",
            f"Make it {name}.to({dtype}).",
        )
    return Capture(name, path, shape, x.dtype, is_input=True)


class Captured:
    """Captured tensors and values of a function, compared at each call with those of its trace.

    Args:
        fn: the function.
        captures: its captured tensors and mechanisms.
        changing: paths of Python values that are not compared.
        constants: tensors of the kernels' mechanism, which are constants.
        snapshot: makes a function that compares the contents of tensors with the present ones.

    Attributes:
        inputs: the captures that are inputs of the kernels.
        constants: tensors of captured mechanisms.
        ignored: paths of Python values that are not compared.
        tensors: the inputs' tensors at the last call of `read`.
    """

    captured_attributes = ()

    def __init__(
        self,
        fn: Callable[..., Any],
        captures: Sequence[Capture],
        changing: frozenset[Path],
        constants: Sequence[Tensor],
        snapshot: Callable[[Sequence[Tensor]], Callable[[], bool]],
    ) -> None:
        self._snapshot = snapshot
        self.inputs = tuple(c for c in captures if c.is_input)
        self._fn, self._captures, self._mechanism = fn, captures, tuple(constants)
        held = [(c.name, follow(fn, c.path)) for c in captures]
        self._of_mechanisms = [
            (name, x)
            for name, mech in held
            if isinstance(mech, Mechanism)
            for x in constants_of(mech)
            if not (x.requires_grad or is_wrapped(x))
        ]
        self.constants = tuple(x for _, x in self._of_mechanisms)
        self._changing = changing
        self.ignore(())

    def ignore(self, paths: Iterable[Path]) -> None:
        """Compare with what there is now, without these paths."""
        self.ignored = self._changing.union(paths)
        self._take(self._new_graph())

    def _new_graph(self) -> ObjectGraph:
        return ObjectGraph(self._fn, frozenset(map(id, self._mechanism)))

    def _take(self, graph: ObjectGraph) -> None:
        """Compare with this graph from now on."""
        self._graph, self._ties = graph, self._paths_of(graph)
        held = [(c, follow(self._fn, c.path)) for c in self._captures]
        fixed = [(c.name, x) for c, x in held if isinstance(x, Tensor) and not c.is_input]
        fixed = [(name, x) for name, x in [*fixed, *self._of_mechanisms] if not is_wrapped(x)]
        self._fixed, self._is_unchanged = outside_transforms(
            lambda: (
                [(name, x, x.detach().clone()) for name, x in fixed],
                self._snapshot([x for _, x in fixed]),
            )
        )
        self._integers = [
            (c.name, c.path, x.detach().clone())
            for c, x in held
            if isinstance(x, Tensor) and not c.is_input
        ]
        self.tensors = tuple(x for c, x in held if c.is_input)
        self._guards = [(graph.name(path), path, x) for path, x in graph.guards(self.ignored)]

    def _paths_of(self, graph: ObjectGraph) -> list[frozenset[Path]]:
        """All paths to each captured object."""
        held = [follow(self._fn, c.path) for c in self._captures]
        return [frozenset(graph.paths.get(id(x), ())) for x in held]

    def read(self) -> tuple[Tensor, ...] | Changes:
        """The inputs' tensors as they are now, or the constants that have changed.

        Raises:
            FusedError: a tensor does not fit the kernels.
        """
        if torch.compiler.is_compiling():
            return self._read_in_compiler()
        if not self._graph.is_unchanged() and (changes := self._follow_objects()) is not None:
            return changes
        if not self._is_unchanged():
            for name, x, old in self._fixed:
                if not torch.equal(x, old):
                    return Changes(name)
            self._take(self._graph)  # equal numbers elsewhere
        for name, x in self._of_mechanisms:
            if x.requires_grad:
                return Changes(name)
        return self.tensors

    def _follow_objects(self) -> Changes | None:
        """Take entries that are other objects now; the changes among them, if there are any."""
        graph = self._new_graph()
        if changes := self._graph.changes(graph, self.ignored):
            values = (p for p, x in changes.items() if x is not Tensor)
            paths = frozenset(p for p in values if not isinstance(changes[p], (Tensor, Mechanism)))
            return Changes(self._graph.name_of_change(next(iter(changes)), graph), paths)
        now = self._paths_of(graph)
        for capture, path, old in zip(self._captures, now, self._ties, strict=True):
            if path != old:
                return Changes(capture.name)
        for name, path, old in self._integers:
            x = follow(self._fn, path)
            if x.shape != old.shape or not torch.equal(x, old):
                return Changes(name)
        for capture in self.inputs:
            _check_fit(capture, follow(self._fn, capture.path))
        self._take(graph)
        return None

    def _read_in_compiler(self) -> tuple[Tensor, ...] | Changes:
        """The inputs read step by step, which torch.compile guards; see `read`."""
        for name, path, old in self._guards:
            now = follow(self._fn, path)
            if type(now) is not type(old) or now != old:
                return Changes(name)
        for name, path, old in self._integers:
            assert_at_runtime(
                (follow(self._fn, path) == old).all(),
                f"{name} has changed, which kernels hold constant.",
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


def log_retrace(function: str, name: str) -> None:
    """Log that kernels are made again, since something that they hold constant has changed."""
    _log.warning(
        "kernels of %s are made again: %s has changed, which they hold constant. Keep values that change "
        "often in a tensor of real numbers: it is read at each call",
        function,
        name,
    )
