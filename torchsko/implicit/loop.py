"""Loops of a number of rounds that is known: in eager mode they are written out, in kernels they stay loops.

A solver's iterations, a policy's memory, the substeps of a step: traced to a straight line they would be
repeated in the program as often as in time. `loop` keeps the body once. Its derivative is a loop as well,
in the other direction, of the body's derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchsko.errors import ShapeError
from torchsko.implicit.derivatives import Flags, Tensors
from torchsko.implicit.steps import Roles, parted, pulled, pushed


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
            that depends on its inputs has to come by these; what the body closes over is constant.
        until: of the same arguments as the body, for each sample whether it is done, a number or truth of no
            dimensions but the batch's. What is done stays as it is; a kernel leaves the loop when all of its
            lanes are done.

    Returns:
        The carried tensors after n rounds.

    Raises:
        ShapeError: when the body gives other shapes than it takes, or a number of tensors; when n is no
            number of rounds; when what is carried, or given besides, is no tensors.

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
    if n > 1 and not torch.compiler.is_compiling() and any(map(_is_traced, given)):
        truths = [x.dtype == torch.bool for x in given]
        step = _of_numbers(step, truths) if any(truths) else step
        rounds = Rounds(step, Roles(len(state), 0, 0, 0), n, False, until is not None)
        # By functions of torch, so that a captured tensor takes part as the input that it is.
        given = [
            torch.where(x, 1.0, 0.0) if t else x.clone() for x, t in zip(given, truths, strict=True)
        ]
        found = [x[-1] for x in _Rounds.apply(rounds, *given)]
        state = tuple(x != 0 if t else x for x, t in zip(found, truths, strict=False))
    else:
        for _ in range(n):
            state = step(*state, *args)
    return state[0] if single else state[:count]


@dataclass(frozen=True)
class Rounds:
    """A step that is repeated.

    Attributes:
        step: of (state, what comes anew, what stays) to (next state, what is stacked, what is summed).
        roles: how many of each.
        count: how often.
        backward: whether what comes anew is taken from its end, and states are numbered from there.
        halts: whether the last tensor of the state says that the sample is done, from which on no state
            changes.
    """

    step: Callable[..., Tensors]
    roles: Roles
    count: int
    backward: bool
    halts: bool = False

    def run(self, *tensors: Tensor) -> Tensors:
        """All states ``[count + 1, ...]``, what is stacked ``[count, ...]`` and what is summed.

        Args:
            *tensors: the state at the start, series ``[count, ...]`` of what comes anew, and what stays.
        """
        roles = self.roles
        state, streams, stay = parted(tensors, (roles.carry, roles.stream))
        states: list[Tensors] = [state]
        stacked: list[Tensors] = []
        summed: Tensors = ()
        order = reversed(range(self.count)) if self.backward else range(self.count)
        for k in order:
            found = self.step(*state, *(x[k] for x in streams), *stay)
            state, kept, more = parted(found, (roles.carry, roles.stacked))
            summed = tuple(map(torch.add, summed, more)) if summed else more
            states.append(state)
            stacked.append(kept)
        turn = slice(None, None, -1 if self.backward else 1)
        series = [*zip(*states[turn], strict=True), *zip(*stacked[turn], strict=True)]
        return (*map(torch.stack, series), *summed)  # type: ignore[arg-type]

    def pulled(self, num_stay: int) -> Rounds:
        """Of cotangents, where so many tensors stay; see `torchsko.implicit.steps.pulled`."""
        roles = self.roles
        needed = (True,) * (roles.stream + num_stay)
        outputs = roles.carry + roles.stacked + roles.summed
        step = pulled(self.step, roles, needed, outputs, True)
        streams = 2 * roles.carry + roles.stream + roles.stacked
        return Rounds(
            step, Roles(roles.carry, streams, roles.stream, num_stay), self.count, not self.backward
        )

    def pushed(self, given: Flags) -> Rounds:
        """Of tangents and states, for the given ones of what comes anew and what stays."""
        step, roles = pushed(self.step, self.roles, given)
        return Rounds(step, roles, self.count, self.backward, self.halts)


def _check_given(carry: Any, n: Any, args: Any) -> None:
    """Refuse what the annotations of `loop` exclude."""
    if type(n) is not int or n < 0:
        raise ShapeError(
            f"n={n!r} is no number of rounds.\nA kernel's loop has as many as it was built with.\n"
            "Pass a Python integer, 0 or more; until= says which samples end sooner."
        )
    if isinstance(args, Tensor):
        raise ShapeError(
            "args is one tensor, whose entries would be arguments of the body.\n"
            "What the body reads besides are several tensors.\nPass a list: args=[x]."
        )
    for name, given in (
        ("carry", (carry,) if isinstance(carry, Tensor) else carry),
        ("args", args),
    ):
        odd = [given] if not isinstance(given, (list, tuple)) else _no_tensors(given)
        if odd:
            raise ShapeError(
                f"{name} of a loop holds {type(odd[0]).__name__}.\n"
                "Loops are of tensors, each an argument of the body.\n"
                "Pass a list of tensors, with torch.tensor(x) for a number."
            )


def _no_tensors(items: Sequence[Any]) -> list[Any]:
    return [x for x in items if not isinstance(x, Tensor)]


def _checked(found: Any, state: Tensors) -> Tensors:
    if not isinstance(found, (list, tuple)) or _no_tensors(found):
        raise ShapeError(
            f"the body of a loop gives {type(found).__name__}, not {len(state)} tensors.\n"
            "What it gives is what it takes in the next round.\n"
            "Return the carried tensor, or a tuple of them in their order."
        )
    shapes, wanted = ([tuple(x.shape) for x in tensors] for tensors in (found, state))
    if shapes != wanted:
        raise ShapeError(
            f"the body of a loop gives tensors of shapes {shapes}, and takes {wanted}.\n"
            "What it gives is what it takes in the next round.\n"
            "Give the carried tensors, alone and in their order; expand() the first ones if they broadcast."
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
    return hasattr(type(torch.func.debug_unwrap(x, recurse=True)), "rounds")


class _Rounds(torch.autograd.Function):
    """`Rounds.run` of tensors of which some are traced: one instruction of the program."""

    @staticmethod
    def forward(rounds: Rounds, *tensors: Tensor) -> Tensors:
        traced = next((x for x in tensors if hasattr(type(x), "rounds")), None)
        if traced is None:
            return rounds.run(*tensors)
        return traced.rounds(rounds, tensors)  # type: ignore[attr-defined]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.rounds, *tensors = inputs
        ctx.save_for_backward(*tensors, *output[: ctx.rounds.roles.carry])
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)  # what does not move takes no part in the loop of tangents
        ctx.shapes = [x.shape for x in output]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        rounds, roles = ctx.rounds, ctx.rounds.roles
        saved = [x.view_as(x) for x in ctx.saved_tensors]
        tensors, states = saved[: -roles.carry], saved[-roles.carry :]
        _, streams, stay = parted(tensors, (roles.carry, roles.stream))
        cotangents = [
            states[0].new_zeros(shape) if y is None else y
            for y, shape in zip(grad_outputs, ctx.shapes, strict=True)
        ]
        marks, stacked, summed = parted(cotangents, (roles.carry, roles.stacked))
        # States are numbered so that the start is the first, or, backward, the last.
        end, before = (0, slice(1, None)) if rounds.backward else (-1, slice(None, -1))
        by = [x[end] for x in marks]
        anew = [x[before] for x in states], streams, [x[before] for x in marks], stacked
        given = (*by, *(x for part in anew for x in part), *stay, *summed)
        back = rounds.pulled(len(stay))
        found = _Rounds.apply(back, *given)
        start = 0 if back.backward else -1
        return None, *(x[start] for x in found[: roles.carry]), *found[roles.carry :]

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensors:
        rounds, roles = ctx.rounds, ctx.rounds.roles
        # As in `torchsko.fused.operator`: torch turns forward mode off in here, and outer levels need it.
        with forward_ad._set_fwd_grad_enabled(True):
            tensors = [forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]
            state, streams, stay = parted(tensors, (roles.carry, roles.stream))
            own, *after = parted(grad_inputs[1:], (roles.carry, roles.stream))
            turn = [torch.zeros_like(x) if dx is None else dx for x, dx in zip(state, own, strict=True)]
            moving, changing = ([dx for dx in part if dx is not None] for part in after)
            ahead = rounds.pushed(tuple(dx is not None for part in after for dx in part))
            found = _Rounds.apply(ahead, *turn, *state, *streams, *moving, *stay, *changing)
        states, _, more = parted(found, (roles.carry, roles.carry))
        return *states, *more

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], rounds: Rounds, *tensors: Tensor
    ) -> tuple[Tensors, tuple[int, ...]]:
        dims, (carry, stream) = in_dims[1:], (rounds.roles.carry, rounds.roles.stream)
        # The state moves with whatever is mapped; rounds of a series are its first dimension still.
        lead = [0] * carry + [1] * stream + [0] * (len(tensors) - carry - stream)
        own = [
            x if d is None else x.movedim(d, to)
            for x, d, to in zip(tensors, dims, lead, strict=True)
        ]
        state = [
            x.expand(info.batch_size, *x.shape) if d is None else x
            for x, d in zip(own[:carry], dims, strict=False)
        ]
        each = (0,) * carry + tuple(None if d is None else 0 for d in dims[carry:])
        step = torch.vmap(rounds.step, each, randomness=info.randomness)
        found = _Rounds.apply(replace(rounds, step=step, halts=False), *state, *own[carry:])
        series = carry + rounds.roles.stacked
        return found, (1,) * series + (0,) * (len(found) - series)
