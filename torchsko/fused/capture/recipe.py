"""Results and captures of a function, found by one evaluation before it is traced."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch.utils import _pytree as pytree

from torchsko.errors import FusedError, TorchskoError
from torchsko.fused.capture.arguments import Arguments, Choice, Eager
from torchsko.fused.capture.captured import Capture, discover
from torchsko.fused.capture.impure_reads import ImpureReads
from torchsko.fused.capture.watch import constants_of, random_draw
from torchsko.fused.tracing.clean import hidden_from_saved_tensor_hooks, in_clean_thread
from torchsko.fused.tracing.object_graph import ObjectGraph, Path
from torchsko.fused.tracing.unsupported import unsupported_by_functorch
from torchsko.mechanism.mechanism import Mechanism
from torchsko.utils.dtype import without_autocast

T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]


class KernelInputs(Protocol):
    """The mechanism of a kernel and its parameters that are inputs; a `Workshop` implements it."""

    mechanism: Mechanism
    parameters: tuple[str, ...]

    def split(self, tensors: tuple[Tensor, ...]) -> Sequence[Any]:
        """The mechanism with its parameters, followed by the other inputs."""
        ...

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of an input for one sample; None if it is not known from the name."""
        ...


@dataclass(frozen=True)
class Recipe:
    """Results and captures of a function with one choice of arguments.

    Attributes:
        form: its results, nested as it nests them, with their positions in the place of tensors.
        num_outputs: number of tensors that it returns.
        captures: tensors and mechanisms that it captures.
        dtypes: position and dtype of results whose dtype is not the kernel's.
        changing: paths of Python values that the function itself changes each time that it runs.
        seconds: processor time of an evaluation.
    """

    form: Any
    num_outputs: int
    captures: tuple[Capture, ...]
    dtypes: tuple[tuple[int, torch.dtype], ...] = ()
    changing: frozenset[Path] = frozenset()
    seconds: float = 0.0


def recipe_of(
    fn: Eager, arguments: Arguments, choice: Choice, shapes: Shapes, workshop: KernelInputs
) -> Recipe:
    """Evaluate a function for one sample, outside of the caller's transforms.

    Args:
        fn: the function.
        arguments: its arguments.
        choice: the arguments of the call.
        shapes: shapes of the tensors among them, for one sample.
        workshop: makes its kernels.

    Raises:
        FusedError: it draws random numbers, reads a clock, a file or the environment, or returns something
            that is not a tensor; see also `discover`.
    """
    if _are_functorch_transforms_active():
        wrapped = ObjectGraph(fn).wrapped()
        return in_clean_thread(lambda: _evaluate(fn, arguments, choice, shapes, workshop, wrapped))
    with hidden_from_saved_tensor_hooks():
        return _evaluate(fn, arguments, choice, shapes, workshop)


@without_autocast
def _evaluate(
    fn: Eager, arguments: Arguments, choice: Choice, shapes: Shapes, workshop: KernelInputs,
    wrapped: Sequence[Tensor] = (),
) -> Recipe:  # fmt: skip
    """One evaluation for a single sample; see `discover` for ``wrapped``."""
    dtype = workshop.mechanism.dtype
    own, *tensors = workshop.split(_one_sample(workshop, shapes))
    known = [*constants_of(own), *tensors]

    def once() -> tuple[tuple[list[Any], Any], tuple[Capture, ...]]:
        return discover(fn, lambda: arguments.call(fn, choice, own, tensors), known, dtype, wrapped)

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
    form = pytree.tree_unflatten(range(len(found)), spec)
    dtypes = tuple((k, x.dtype) for k, x in enumerate(found) if x.dtype != dtype)
    seconds = time.thread_time() - start
    return Recipe(form, len(found), captures, dtypes, changing, seconds)


def _one_sample(workshop: KernelInputs, shapes: Shapes) -> tuple[Tensor, ...]:
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


def _run_until_stable(fn: Eager, run: Callable[[], T]) -> tuple[T, frozenset[Path]]:
    """Evaluate the function, a second time if the first changed Python values, as a set-up does.

    Returns:
        The last result, and paths of the values that the second evaluation changed.

    Raises:
        FusedError: it draws random numbers, or reads a clock, a file or the environment.
    """
    before, impure = ObjectGraph(fn), ImpureReads(fn)
    with impure:
        found = run()
    if not impure.reads and not impure.draws and before.is_unchanged():
        return found, frozenset()
    before, impure = ObjectGraph(fn), ImpureReads(fn)
    with impure:
        found = run()
    if impure.draws:
        raise random_draw(impure.draws[0])
    if impure.reads:
        raise FusedError(
            f"the function calls {impure.reads[0]}.",
            "A kernel would keep the value that was read when it was traced.",
            "Read it before the call, and pass it as an argument.",
        )
    return found, frozenset(before.changes(ObjectGraph(fn), ()))


_OF_ONE_SAMPLE = (
    "For a kernel the function was called with one sample, without batch dimensions: {samples}.\n"
    "Count dimensions from the last: torch.cat([q, qd], -1), q[..., :3]."
)
