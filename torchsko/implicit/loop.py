"""Loops with a fixed number of iterations: Python loops in eager mode, loops in kernels.

Examples are the iterations of a solver, a policy with memory, or the substeps of an integrator. Without
`loop` a trace repeats the body for every iteration; with it the program contains the body once. The
derivatives are loops as well; see `torchsko.implicit.tensor_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor
from torch._C import _get_dispatch_mode
from torch._subclasses import FakeTensor
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]
from torch.overrides import _get_current_function_mode_stack

from torchsko.errors import ShapeError
from torchsko.implicit.jacobian_products import Tensors
from torchsko.implicit.loop_roles import LoopRoles
from torchsko.implicit.table_loop import Read, Write, is_looped, table_loop
from torchsko.implicit.tensor_loop import TensorLoop, TensorLoopFunction
from torchsko.implicit.traced_inputs import first_traced, with_float_inputs
from torchsko.utils.traced_tensor import RunsEqualCallsOnce, TracedTensor

_RECORDER = torch._C._TorchDispatchModeKey.PROXY  # the mode of make_fx


@overload
def iterate(
    body: Callable[..., Tensor],
    carry: Tensor,
    n: int,
    args: Sequence[Tensor] = (),
    *,
    until: Callable[..., Tensor] | None = None,
    stop_early: bool = True,
) -> Tensor: ...


@overload
def iterate(
    body: Callable[..., Sequence[Tensor]],
    carry: Sequence[Tensor],
    n: int,
    args: Sequence[Tensor] = (),
    *,
    until: Callable[..., Tensor] | None = None,
    stop_early: bool = True,
) -> tuple[Tensor, ...]: ...


def iterate(
    body: Callable[..., Any],
    carry: Tensor | Sequence[Tensor],
    n: int,
    args: Sequence[Tensor] = (),
    *,
    until: Callable[..., Tensor] | None = None,
    stop_early: bool = True,
) -> Tensor | tuple[Tensor, ...]:
    """Apply a function n times: by a Python loop in eager mode, by a loop in a kernel.

    Args:
        body: a function of the carried tensors and of ``args``, each an argument, which returns the carried
            tensors with the same shapes.
        carry: one or several tensors.
        n: number of iterations.
        args: further arguments of the body, the same in each iteration. In a traced function
            (`torchsko.fuse`) tensors and robots that the body captures become such arguments.
        until: a function of the arguments of the body, which returns for each sample whether it is
            finished, as a number or bool without dimensions other than the batch's. Finished samples do not
            change. A kernel leaves the loop when all samples of a vector are finished.
        stop_early: in eager mode, leave the loop when all samples are finished. On a GPU the host then waits
            for the device before each iteration. `torch.compile` runs all n iterations.

    Returns:
        The carried tensors after n iterations.

    Raises:
        ShapeError: the body returns other shapes or another number of tensors than it takes, n is not a
            nonnegative int, or ``carry`` or ``args`` contain objects that are not tensors.

    Example:
        >>> import torch, torchsko as ts
        >>> two = torch.tensor(2.0, dtype=torch.float64)
        >>> ts.iterate(lambda x, a: (x + a / x) / 2, two, 6, [two])
        tensor(1.4142, dtype=torch.float64)
    """
    _check_arguments(carry, n, args)
    single = isinstance(carry, Tensor)
    state: Tensors = (carry,) if isinstance(carry, Tensor) else tuple(carry)
    count = len(state)

    def checked_body(*tensors: Tensor) -> Tensors:
        result = body(*tensors)
        is_bare = single and isinstance(result, Tensor)
        return _checked((result,) if is_bare else result, tensors[:count])

    step = checked_body
    if until is not None:
        state, step = _stopping(step, until, state, tuple(args))
    inputs = (*state, *args)
    if n > 1 and _is_traced(inputs):
        outputs = _traced_loop(step, inputs, LoopRoles(len(state), 0, 0, 0), n, until is not None)
        state = tuple(x[-1] for x in outputs)
    else:
        can_stop = until is not None and stop_early
        for _ in range(n):
            if can_stop and _are_all_nonzero(state[-1]):
                break
            state = step(*state, *args)
    return state[0] if single else state[:count]


def _are_all_nonzero(flags: Tensor) -> bool:
    """True if all flags can be read and are nonzero, those of mapped samples included."""
    if torch.compiler.is_compiling() or is_tracing() or _get_dispatch_mode(_RECORDER) is not None:
        return False
    flags = torch.func.debug_unwrap(flags, recurse=True)
    if flags.is_meta or isinstance(flags, FakeTensor | TracedTensor):
        return False
    if flags.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    with torch._C.DisableTorchFunction():
        return bool((flags != 0).all())


def subprogram(fn: Callable[..., Tensors], args: Sequence[Tensor], num_outputs: int) -> Tensors:
    """Call a function that becomes one function of the kernel, shared by calls of equal structure.

    Otherwise a trace contains the function once for each call. The structure of arguments consists of
    zeros, constants and equal entries, which simplify the function.

    Args:
        fn: a function of tensors; tensors that it captures are constant.
        args: its arguments.
        num_outputs: number of tensors that it returns.

    Returns:
        The results of the function. In eager mode it is simply called.
    """
    if not _is_traced(args):
        mode = _equal_calls_mode()
        return tuple(fn(*args)) if mode is None else mode.results_of(fn, args)
    outputs = _traced_loop(fn, args, LoopRoles(0, 0, num_outputs, 0), 1, False)
    return tuple(x[0] for x in outputs)


def repeat(
    body: Callable[..., Tensors], carry: Sequence[Tensor], n: int, num_results: int
) -> Tensors:
    """Apply a function n times, which returns further results: those of the last time are returned.

    Args:
        body: a function of the carried tensors, which returns these tensors, then further ones; tensors that
            it captures are constant.
        carry: the tensors at the start.
        n: number of times.
        num_results: number of further results.

    Returns:
        The carried tensors after n iterations, and the further results of the last one.
    """
    count = len(carry)
    if n > 1 and _is_traced(carry):
        outputs = _traced_loop(body, carry, LoopRoles(count, 0, num_results, 0), n, False)
        return tuple(x[-1] for x in outputs)
    found: Tensors = tuple(carry)
    for _ in range(1 if _equal_calls_mode() else n):
        found = body(*found[:count])
    return found


def _equal_calls_mode() -> RunsEqualCallsOnce | None:
    """The mode that looks at operations and not at values, if there is one."""
    modes = _get_current_function_mode_stack()
    return next((x for x in modes if isinstance(x, RunsEqualCallsOnce)), None)


def _is_traced(tensors: Sequence[Tensor]) -> bool:
    """True if a tensor belongs to a program that is being traced."""
    return first_traced(tensors) is not None


def _traced_loop(
    body: Callable[..., Tensors],
    inputs: Sequence[Tensor],
    roles: LoopRoles,
    n: int,
    stops_early: bool,
) -> list[Tensor]:
    """The outputs of `TensorLoop.run`, as one instruction of the traced program."""
    body, captured = first_traced(inputs).convert_closure(body)
    inputs = (*inputs, *captured)
    are_bool = [x.dtype == torch.bool for x in inputs]
    body = with_float_inputs(body, are_bool) if any(are_bool) else body
    # Torch functions here let a captured tensor take part as the input that replaces it.
    floats = [
        torch.where(x, 1.0, 0.0) if flag else x.clone()
        for x, flag in zip(inputs, are_bool, strict=True)
    ]
    outputs = TensorLoopFunction.apply(TensorLoop(body, roles, n, False, stops_early), *floats)
    return [x != 0 if k < roles.carry and are_bool[k] else x for k, x in enumerate(outputs)]


def _check_arguments(carry: Any, n: Any, args: Any) -> None:
    """Refuse arguments that the annotations of `loop` exclude."""
    if type(n) is not int or n < 0:
        raise ShapeError(
            f"n={n!r} is not a number of iterations.",
            "The loop of a kernel has a fixed number of iterations.",
            "Pass a nonnegative int; with until= samples can stop earlier.",
        )
    if isinstance(args, Tensor):
        raise ShapeError(
            "args is a single tensor.",
            "Each entry of args is an argument of the body.",
            "Pass a list: args=[x].",
        )
    for name, tensors in (
        ("carry", (carry,) if isinstance(carry, Tensor) else carry),
        ("args", args),
    ):
        wrong = [tensors] if not isinstance(tensors, (list, tuple)) else _not_tensors(tensors)
        if wrong:
            raise ShapeError(
                f"{name} of a loop contains {type(wrong[0]).__name__}.",
                "Each entry is an argument of the body, and must be a tensor.",
                "Pass a list of tensors, with torch.tensor(x) for a number.",
            )


def _not_tensors(items: Sequence[Any]) -> list[Any]:
    return [x for x in items if not isinstance(x, Tensor)]


def _checked(result: Any, state: Tensors) -> Tensors:
    if not isinstance(result, (list, tuple)) or _not_tensors(result):
        raise ShapeError(
            f"the body of a loop returns {type(result).__name__}, not {len(state)} tensors.",
            "Its results are its arguments in the next iteration.",
            "Return the carried tensor, or a tuple of all carried tensors in their order.",
        )
    shapes, expected = ([tuple(x.shape) for x in tensors] for tensors in (result, state))
    if shapes != expected:
        raise ShapeError(
            f"the body of a loop returns tensors of shapes {shapes}, but takes {expected}.",
            "Its results are its arguments in the next iteration.",
            "Return the carried tensors only, in their order; expand() the initial ones if they broadcast.",
        )
    return tuple(result)


def _stopping(
    body: Callable[..., Tensors], until: Callable[..., Tensor], state: Tensors, args: Tensors
) -> tuple[Tensors, Callable[..., Tensors]]:
    """The carry with a flag for finished samples, and the body that does not change these samples."""
    count = len(state)

    def finished(*tensors: Tensor) -> Tensor:
        return until(*tensors).to(tensors[0].dtype).detach()

    def stopping_body(*tensors: Tensor) -> Tensors:
        old, flag, others = tensors[:count], tensors[count], tensors[count + 1 :]
        new = body(*old, *others)
        is_done = flag != 0
        selected = [_selected(is_done, x, y) for x, y in zip(old, new, strict=True)]
        return (*selected, torch.where(is_done, flag, finished(*selected, *others)))

    return (*state, finished(*state, *args)), stopping_body


MIN_LOOPED_CARRY = 48
"""Entries from which the selection of finished samples in a carried vector is a loop of a kernel."""


def _selected(is_done: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """The old tensor for finished samples, else the new one."""

    def select(old: Tensor, new: Tensor) -> tuple[Tensor]:
        flags = is_done.reshape((*is_done.shape, *(1,) * (old.ndim - is_done.ndim)))
        return (torch.where(flags, old, new),)

    count = new.shape[-1] if new.ndim > is_done.ndim else 0
    if count >= MIN_LOOPED_CARRY and is_looped(new, count):
        return table_loop(select, [Read(old, -1), Read(new, -1)], [Write(-1)])[0]
    return select(old, new)[0]
