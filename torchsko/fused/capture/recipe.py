"""What one evaluation of a function, before it is traced, tells that its kernels need to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch.utils import _pytree as pytree

from torchsko.errors import FusedError, TorchskoError
from torchsko.fused.capture.arguments import Arguments, Choice
from torchsko.fused.capture.captured import Capture, discover
from torchsko.fused.capture.constants import Constants
from torchsko.fused.capture.generators import Generators
from torchsko.fused.capture.sources import Reachable
from torchsko.fused.capture.watch import constants_of, draws
from torchsko.fused.tracing.clean import in_clean_thread, unfollowed
from torchsko.fused.tracing.unsupported import unsupported_by_functorch
from torchsko.fused.workshop import Eager, Workshop
from torchsko.utils.dtype import without_autocast

T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Recipe:
    """What one evaluation told about a function with some choice of arguments.

    Attributes:
        form: its results, nested as it nests them, with their numbers in the place of tensors.
        num_outputs: how many tensors it returns.
        captures: what it reads from outside of its arguments.
        kinds: their types, of results that are of another than the kernel's.
        own: names of objects that it makes itself, outside of its arguments.
    """

    form: Any
    num_outputs: int
    captures: tuple[Capture, ...]
    kinds: tuple[tuple[int, torch.dtype], ...] = ()
    own: frozenset[str] = frozenset()


def recipe_of(
    fn: Eager, arguments: Arguments, choice: Choice, shapes: Shapes, workshop: Workshop
) -> Recipe:
    """Evaluate a function once, out of reach of what its caller does to tensors.

    Args:
        fn: the function.
        arguments: what it takes.
        choice: what it is given of them.
        shapes: of the tensors among those, for one sample.
        workshop: where its kernels are to be made.

    Raises:
        FusedError: it changes a number each time, or returns something that is no tensor; see also
            `discover`.
    """
    if _are_functorch_transforms_active():
        wrapped = Reachable(fn).wrapped()
        return in_clean_thread(lambda: _evaluate(fn, arguments, choice, shapes, workshop, wrapped))
    with unfollowed():
        return _evaluate(fn, arguments, choice, shapes, workshop)


@without_autocast
def _evaluate(
    fn: Eager, arguments: Arguments, choice: Choice, shapes: Shapes, workshop: Workshop,
    wrapped: Sequence[Tensor] = (),
) -> Recipe:  # fmt: skip
    """One evaluation, for a single sample; see `discover` for what is wrapped."""
    dtype = workshop.mechanism.dtype
    own, *tensors = workshop.split(_one_sample(workshop, shapes), scalar=False)
    known = [*constants_of(own), *tensors]

    def once() -> tuple[tuple[list[Any], Any], tuple[Capture, ...]]:
        return discover(fn, lambda: arguments.call(fn, choice, own, tensors), known, dtype, wrapped)

    try:
        ((found, spec), captures), made = _run_until_still(fn, once)
    except (IndexError, RuntimeError, ValueError) as error:
        if isinstance(error, TorchskoError):
            raise
        if isinstance(error, RuntimeError) and (cause := unsupported_by_functorch(error)):
            raise cause from error
        # Of the function's own: its batch may be all that it misses.
        seen = ", ".join(f"{name} {list(s)}" for name, s in shapes.items() if 0 not in s)
        error.add_note(_OF_ONE_SAMPLE.format(seen=seen))
        raise
    if not found or not all(isinstance(x, Tensor) for x in found):
        raise FusedError(
            "the function returned something that is no tensor.",
            "A kernel's results are tensors.",
            "Return a tensor, or tuples and dicts of them.",
        )
    form = pytree.tree_unflatten(range(len(found)), spec)
    kinds = tuple((k, x.dtype) for k, x in enumerate(found) if x.dtype != dtype)
    return Recipe(form, len(found), captures, kinds, made)


def _one_sample(workshop: Workshop, shapes: Shapes) -> tuple[Tensor, ...]:
    """Tensors to evaluate a function with: its arguments, then parameters that are inputs."""
    mech = workshop.mechanism
    states = [mech.neutral() if n == "q" else mech.mass.new_zeros(s) for n, s in shapes.items()]
    # Copies: the function may read the same tensors by ways of its own, and is to be seen doing so.
    parameters = [
        _first(getattr(mech, name), cast(tuple, workshop.shape(name))).detach().clone()
        for name in workshop.parameters
    ]
    return (*states, *parameters)


def _first(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Of a parameter that of the first robot; where there is none, some numbers, since none is read."""
    rows = x.reshape(-1, *shape)
    return rows[0] if len(rows) else rows.new_ones(shape)


def _run_until_still(fn: Eager, run: Callable[[], T]) -> tuple[T, frozenset[str]]:
    """What a run of the function gives, once it changes no number; some it may set up.

    Returns:
        That, and the names of objects that it makes itself.

    Raises:
        FusedError: it changes a number each time, or draws one.
    """
    numbers = own = frozenset[str]()
    drawn: list[str] = []
    for _ in range(2):
        before, generators = Constants(fn, own), Generators(fn)
        found = run()
        numbers, objects = before.changes()
        own |= objects
        drawn = generators.drawn()
        if not numbers and not drawn:
            return found, own
    if drawn:
        raise FusedError(draws(drawn[0]))
    raise FusedError(
        f"the function changes {', '.join(sorted(numbers))} each time that it runs.",
        "A kernel returns results and changes nothing: it would hold the first value for ever.",
        "Pass it as an argument, or see ts.rollout for a control with a memory: start and act.",
    )


_OF_ONE_SAMPLE = (
    "For a kernel the function was called with one sample, without batch dimensions: {seen}.\n"
    "Count dimensions from the last: torch.cat([q, qd], -1), q[..., :3]."
)
