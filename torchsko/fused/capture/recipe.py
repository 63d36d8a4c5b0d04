"""Results and captures of a function, found by one evaluation before it is traced."""

from __future__ import annotations

import pickle
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch.utils import _pytree as pytree

from torchsko.errors import FusedError, TorchskoError
from torchsko.fused.capture.arguments import Arguments, Choice
from torchsko.fused.capture.captured import Capture, fixed_tensors
from torchsko.fused.tracing.clean import (
    concrete,
    hidden_from_saved_tensor_hooks,
    in_clean_thread,
    is_wrapped,
)
from torchsko.fused.tracing.content import Known, digest_of_content
from torchsko.fused.tracing.object_graph import ObjectGraph, Path, names_in
from torchsko.fused.tracing.swap import Swap
from torchsko.fused.tracing.unsupported import unsupported_by_functorch
from torchsko.fused.tracing.watch import PASS_IT, Watch, constants_of, random_draw
from torchsko.fused.workshop import Eager, Workshop
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.dtype import without_autocast
from torchsko.utils.traced_tensor import RunsEqualCallsOnce

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Recipe:
    """Results and captures of a function with one choice of arguments.

    Attributes:
        spec: how its results are nested.
        captures: tensors and mechanisms that it captures.
        dtypes: position and dtype of results whose dtype is not the kernel's.
        changing: paths of Python values that the function itself changes each time that it runs.
        seconds: processor time of an evaluation.
    """

    spec: pytree.TreeSpec
    captures: tuple[Capture, ...]
    dtypes: tuple[tuple[int, torch.dtype], ...] = ()
    changing: frozenset[Path] = frozenset()
    seconds: float = 0.0


def recipe_of(
    fn: Eager, arguments: Arguments, choice: Choice, shapes: Shapes, workshop: Workshop
) -> Recipe:
    """Evaluate a function for one sample, outside of the caller's transforms.

    Args:
        fn: the function.
        arguments: its arguments.
        choice: the arguments of the call.
        shapes: shapes of the tensors among them, for one sample.
        workshop: makes its kernels.

    Raises:
        FusedError: it draws random numbers, writes into a captured tensor, captures a tensor that cannot be
            an input, or returns something that is not a tensor.
    """
    if _are_functorch_transforms_active():
        wrapped = [x for x in ObjectGraph(fn).tensors() if is_wrapped(x)]
        return in_clean_thread(lambda: _evaluate(fn, arguments, choice, shapes, workshop, wrapped))
    with hidden_from_saved_tensor_hooks():
        return _evaluate(fn, arguments, choice, shapes, workshop)


@without_autocast
def _evaluate(
    fn: Eager, arguments: Arguments, choice: Choice, shapes: Shapes, workshop: Workshop,
    wrapped: Sequence[Tensor] = (),
) -> Recipe:  # fmt: skip
    """One evaluation for a single sample; see `_discover` for ``wrapped``."""
    dtype = workshop.mechanism.dtype
    own, *tensors = workshop.split(_one_sample(workshop, shapes))
    known = [*constants_of(own), *tensors]

    def once() -> tuple[tuple[list[Any], Any], tuple[Capture, ...]]:
        return _discover(
            fn, lambda: arguments.call(fn, choice, own, tensors), known, dtype, wrapped
        )

    start = time.thread_time()
    try:
        ((found, spec), captures), changing = _run_until_stable(fn, once)
    except (IndexError, RuntimeError, ValueError) as error:
        if isinstance(error, TorchskoError):
            raise
        if isinstance(error, RuntimeError) and (cause := unsupported_by_functorch(error)):
            raise cause from error
        # The user's own error, which the missing batch dimension may have caused.
        samples = ", ".join(f"{name} {list(s)}" for name, s in shapes.items() if 0 not in s)
        error.add_note(_OF_ONE_SAMPLE.format(samples=samples))
        raise
    if not found or not all(isinstance(x, Tensor) for x in found):
        raise FusedError(
            "the function returned something that is not a tensor.",
            "The results of a kernel are tensors.",
            "Return a tensor, or tuples and dicts of tensors.",
        )
    dtypes = tuple((k, x.dtype) for k, x in enumerate(found) if x.dtype != dtype)
    seconds = time.thread_time() - start
    return Recipe(spec, captures, dtypes, changing, seconds)


def _one_sample(workshop: Workshop, shapes: Shapes) -> tuple[Tensor, ...]:
    """Tensors to evaluate a function with: its arguments, then parameters that are inputs."""
    mech = workshop.mechanism
    states = [mech.neutral() if n == "q" else mech.mass.new_zeros(s) for n, s in shapes.items()]
    # Copies: a function that captures the parameters, too, must be found to do so.
    parameters = [
        _first(getattr(mech, name), cast(tuple, workshop.shape(name))).detach().clone()
        for name in workshop.parameters
    ]
    return (*states, *parameters)


def _first(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A parameter of the first robot of a batch; ones for an empty batch."""
    rows = x.reshape(-1, *shape)
    return rows[0] if len(rows) else rows.new_ones(shape)


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


def _discover(
    fn: Eager,
    run: Callable[[], Any],
    known: Iterable[Tensor],
    dtype: torch.dtype,
    wrapped: Sequence[Tensor],
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
    mechanisms = (x for x in graph.objects if isinstance(x, Mechanism))
    owner = {id(x): mech for mech in mechanisms for x in fixed_tensors(mech)}
    met = (originals.get(id(x), x) for x in watch.met.values())
    found = {id(x): x for x in (owner.get(id(x), x) for x in met)}
    return result, tuple(_capture(graph, x, dtype) for x in found.values())


def _capture(graph: ObjectGraph, x: Any, dtype: torch.dtype) -> Capture:
    path = graph.paths.get(id(x))
    if path is None:
        raise FusedError(
            f"the function reads a tensor of shape {tuple(x.shape)} to which no path was found, or which it "
            "has replaced meanwhile.",
            "A kernel reads captured tensors at each call, through names, attributes and containers.",
            PASS_IT,
        )
    name = graph.name(path)
    if isinstance(x, Mechanism):
        return Capture(name, path)
    is_input = x.is_floating_point() or x.is_complex()
    if is_input and torch.promote_types(x.dtype, dtype) != dtype:
        raise FusedError(
            f"{name} is {x.dtype}, the mechanism {dtype}.",
            "A kernel computes in one dtype, and captured tensors are not rounded to it.",
            f"Make it {name}.to({dtype}).",
        )
    return Capture(name, path, tuple(x.shape), x.dtype, is_input)


def _run_until_stable(
    fn: Eager, run: Callable[[], Any], *, is_first: bool = True
) -> tuple[Any, frozenset[Path]]:
    """Evaluate the function, a second time if the first changed Python values, as a set-up does.

    Returns:
        The last result, and paths of the values that the second evaluation changed.

    Raises:
        FusedError: it draws random numbers.
    """
    before = ObjectGraph(fn)
    generators = _generators(before)
    states = [pickle.dumps(x) for _, x in generators]
    found = run()
    pairs = zip(generators, states, strict=True)
    drawn = [name for (name, x), state in pairs if pickle.dumps(x) != state]
    if not drawn and before.is_unchanged():
        return found, frozenset()
    if is_first:
        return _run_until_stable(fn, run, is_first=False)
    if drawn:
        raise random_draw(drawn[0])
    return found, frozenset(before.changes(ObjectGraph(fn)))


def _generators(graph: ObjectGraph) -> list[tuple[str, Any]]:
    """Generators of Python and NumPy from which a function may draw random numbers, with their names."""
    kinds = (np.random.Generator, np.random.RandomState, random.Random)
    drawn = [x for x in graph.objects if isinstance(x, kinds)]
    found = [
        (graph.name(graph.paths[id(x)]), x) for x in drawn if type(x) is not random.SystemRandom
    ]
    named = (names_in(x.__code__) for x in graph.objects if isinstance(x, FunctionType))
    # Another thread may draw from the generators of the process.
    if threading.active_count() == 1 or any("random" in names for names in named):
        found += [("random", random._inst), ("numpy.random", np.random.mtrand._rand)]  # pyright: ignore
    return found


_OF_ONE_SAMPLE = (
    "For a kernel the function was called with one sample, without batch dimensions: {samples}.\n"
    "Count dimensions from the last: torch.cat([q, qd], -1), q[..., :3]."
)
