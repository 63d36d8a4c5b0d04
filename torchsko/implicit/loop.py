"""Loops of a number of rounds that is known: in eager mode they are written out, in kernels they stay loops.

A solver's iterations, a policy's memory, the substeps of a step: traced to a straight line they would be
repeated in the program as often as in time. `loop` keeps the body once. Its derivatives are loops as well,
of the body's; see `torchsko.implicit.repetition`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor

from torchsko.errors import ShapeError
from torchsko.implicit.jacobians import Tensors
from torchsko.implicit.repetition import Repeated, Rounds
from torchsko.implicit.step_roles import Roles
from torchsko.utils.traced_tensor import TracedTensor


@overload
def loop(
    body: Callable[..., Tensor],
    carry: Tensor,
    n: int,
    args: Sequence[Tensor] = (),
    *,
    until: Callable[..., Tensor] | None = None,
) -> Tensor: ...


@overload
def loop(
    body: Callable[..., Sequence[Tensor]],
    carry: Sequence[Tensor],
    n: int,
    args: Sequence[Tensor] = (),
    *,
    until: Callable[..., Tensor] | None = None,
) -> tuple[Tensor, ...]: ...


def loop(
    body: Callable[..., Any],
    carry: Tensor | Sequence[Tensor],
    n: int,
    args: Sequence[Tensor] = (),
    *,
    until: Callable[..., Tensor] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """Apply a function again and again: in eager mode as a Python loop would, in kernels as a loop.

    Args:
        body: of the carried tensors and of ``args``, each an argument of its own; gives the carried ones, of
            the same shapes.
        carry: a tensor, or several.
        n: number of rounds.
        args: what the body reads besides, the same in each round. In a traced function (`torchsko.fuse`) all
            that depends on its inputs has to come by these; what the body closes over is constant, or what a
            `torch.vmap` within the function maps.
        until: of the same arguments as the body, for each sample whether it is done, a number or truth of no
            dimensions but the batch's. What is done stays as it is; a kernel leaves the loop when all of its
            lanes are done.

    Returns:
        The carried tensors after n rounds.

    Raises:
        ShapeError: when the body gives other shapes than it takes, or a number of tensors; when n is no
            number of rounds; when what is carried, or given besides, is no tensors.
        FusedError: in a traced function, a derivative by a tensor that the body closes over.

    Example:
        >>> import torch, torchsko as ts
        >>> two = torch.tensor(2.0, dtype=torch.float64)
        >>> ts.loop(lambda x, a: (x + a / x) / 2, two, 6, [two])
        tensor(1.4142, dtype=torch.float64)
    """
    _check_given(carry, n, args)
    single = isinstance(carry, Tensor)
    state: Tensors = (carry,) if isinstance(carry, Tensor) else tuple(carry)
    count = len(state)

    def step(*tensors: Tensor) -> Tensors:
        found = body(*tensors)
        alone = single and isinstance(found, Tensor)
        return _checked((found,) if alone else found, tensors[:count])

    if until is not None:
        state, step = _halting(step, until, state, tuple(args))
    given = (*state, *args)
    if n > 1 and _in_a_trace(given):
        found = _traced(step, given, Roles(len(state), 0, 0, 0), n, until is not None)
        state = tuple(x[-1] for x in found)
    else:
        for _ in range(n):
            state = step(*state, *args)
    return state[0] if single else state[:count]


def subprogram(fn: Callable[..., Tensors], args: Sequence[Tensor], num_outputs: int) -> Tensors:
    """A function that a kernel has once, wherever it is called with arguments of the same structure.

    Else a traced function is written out at each call. Structure are zeros, constants and which entries are
    equal: what is known of the arguments is known within.

    Args:
        fn: of the tensors alone; what it closes over is constant.
        args: its arguments.
        num_outputs: how many tensors it gives.

    Returns:
        What it gives, as in eager mode, where it is called and no more.
    """
    if not _in_a_trace(args):
        return tuple(fn(*args))
    return tuple(x[0] for x in _traced(fn, args, Roles(0, 0, num_outputs, 0), 1, False))


def _in_a_trace(given: Sequence[Tensor]) -> bool:
    """Whether tensors are of a program that is being traced."""
    return not torch.compiler.is_compiling() and any(map(_is_traced, given))


def _traced(
    step: Callable[..., Tensors], given: Sequence[Tensor], roles: Roles, n: int, halts: bool
) -> list[Tensor]:
    """All rounds of a step as one instruction of the program: see `Rounds.run`."""
    symbolic: Any = torch.func.debug_unwrap(next(filter(_is_traced, given)), recurse=True)
    step, more = symbolic.convert_closure(step)
    given = (*given, *more)
    truths = [x.dtype == torch.bool for x in given]
    step = _of_numbers(step, truths) if any(truths) else step
    rounds = Rounds(step, roles, n, False, halts)
    # By functions of torch, so that a captured tensor takes part as the input that it is.
    given = [
        torch.where(x, 1.0, 0.0) if t else x.clone() for x, t in zip(given, truths, strict=True)
    ]
    found = Repeated.apply(rounds, *given)
    are_truths = [k < roles.carry and truths[k] for k in range(len(found))]
    return [x != 0 if t else x for x, t in zip(found, are_truths, strict=True)]


def _check_given(carry: Any, n: Any, args: Any) -> None:
    """Refuse what the annotations of `loop` exclude."""
    if type(n) is not int or n < 0:
        raise ShapeError(
            f"n={n!r} is no number of rounds.",
            "A kernel's loop has as many as it was built with.",
            "Pass a Python integer, 0 or more; until= says which samples end sooner.",
        )
    if isinstance(args, Tensor):
        raise ShapeError(
            "args is one tensor, whose entries would be arguments of the body.",
            "What the body reads besides are several tensors.",
            "Pass a list: args=[x].",
        )
    for name, given in (
        ("carry", (carry,) if isinstance(carry, Tensor) else carry),
        ("args", args),
    ):
        odd = [given] if not isinstance(given, (list, tuple)) else _no_tensors(given)
        if odd:
            raise ShapeError(
                f"{name} of a loop holds {type(odd[0]).__name__}.",
                "Loops are of tensors, each an argument of the body.",
                "Pass a list of tensors, with torch.tensor(x) for a number.",
            )


def _no_tensors(items: Sequence[Any]) -> list[Any]:
    return [x for x in items if not isinstance(x, Tensor)]


def _checked(found: Any, state: Tensors) -> Tensors:
    if not isinstance(found, (list, tuple)) or _no_tensors(found):
        raise ShapeError(
            f"the body of a loop gives {type(found).__name__}, not {len(state)} tensors.",
            "What it gives is what it takes in the next round.",
            "Return the carried tensor, or a tuple of them in their order.",
        )
    shapes, wanted = ([tuple(x.shape) for x in tensors] for tensors in (found, state))
    if shapes != wanted:
        raise ShapeError(
            f"the body of a loop gives tensors of shapes {shapes}, and takes {wanted}.",
            "What it gives is what it takes in the next round.",
            "Give the carried tensors, alone and in their order; expand() the first ones if they broadcast.",
        )
    return tuple(found)


def _of_numbers(step: Callable[..., Tensors], truths: Sequence[bool]) -> Callable[..., Tensors]:
    """The step with 1 and 0 in the place of truth values, which have no derivatives."""

    def numbered(*tensors: Tensor) -> Tensors:
        found = step(*(x != 0 if t else x for x, t in zip(tensors, truths, strict=True)))
        return tuple(torch.where(x, 1.0, 0.0) if x.dtype == torch.bool else x for x in found)

    return numbered


def _halting(
    step: Callable[..., Tensors], until: Callable[..., Tensor], state: Tensors, args: Tensors
) -> tuple[Tensors, Callable[..., Tensors]]:
    """The state with a mark of what is done, and the step that leaves it."""
    count = len(state)

    def marked(*tensors: Tensor) -> Tensor:
        return until(*tensors).to(tensors[0].dtype).detach()

    def halting(*tensors: Tensor) -> Tensors:
        old, done, more = tensors[:count], tensors[count], tensors[count + 1 :]
        new = step(*old, *more)
        still = done != 0
        kept = [
            torch.where(still.reshape((*still.shape, *(1,) * (x.ndim - still.ndim))), x, y)
            for x, y in zip(old, new, strict=True)
        ]
        return (*kept, torch.where(still, done, marked(*kept, *more)))

    return (*state, marked(*state, *args)), halting


def _is_traced(x: Tensor) -> bool:
    """Whether a tensor belongs to a program that is being traced."""
    return isinstance(torch.func.debug_unwrap(x, recurse=True), TracedTensor)
