"""Loops of a number of rounds that is known: in eager mode they are written out, in kernels they stay loops.

A solver's iterations, a policy's memory, the substeps of a step: traced to a straight line they would be
repeated in the program as often as in time. `loop` keeps the body once. Its derivative is a loop as well,
in the other direction, of the body's derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from torchsko.errors import ShapeError
from torchsko.implicit.derivatives import Tensors
from torchsko.implicit.steps import Roles, parted, pulled


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
        ShapeError: when the body gives other shapes than it takes, or a number of tensors.

    Example:
        >>> import torch, torchsko as ts
        >>> two = torch.tensor(2.0, dtype=torch.float64)
        >>> ts.loop(lambda x, a: (x + a / x) / 2, two, 6, [two])
        tensor(1.4142, dtype=torch.float64)
    """
    single = isinstance(carry, Tensor)
    state: Tensors = (carry,) if isinstance(carry, Tensor) else tuple(carry)
    count = len(state)

    def step(*tensors: Tensor) -> Tensors:
        found = body(*tensors)
        return _checked((found,) if single else tuple(found), tensors[:count])

    if until is not None:
        state, step = _halting(step, until, state, tuple(args))
    given = (*state, *args)
    if n > 1 and not torch.compiler.is_compiling() and any(map(_is_traced, given)):
        rounds = Rounds(step, Roles(len(state), 0, 0, 0), n, False, until is not None)
        # By a function of torch, so that a captured tensor takes part as the input that it is.
        given = map(torch.clone, given)
        state = tuple(x[-1] for x in _Rounds.apply(rounds, *given))
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


def _checked(found: Tensors, state: Tensors) -> Tensors:
    shapes, wanted = ([tuple(x.shape) for x in tensors] for tensors in (found, state))
    if shapes != wanted:
        raise ShapeError(
            f"the body of a loop gives tensors of shapes {shapes}, and takes {wanted}.\n"
            "What it gives is what it takes in the next round.\n"
            "Give the carried tensors, alone and in their order; expand() the first ones if they broadcast."
        )
    return found


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

    generate_vmap_rule = True

    @staticmethod
    def forward(rounds: Rounds, *tensors: Tensor) -> Tensors:
        traced = next((x for x in tensors if hasattr(type(x), "rounds")), None)
        # What is mapped over is written out: the program is of one sample.
        return rounds.run(*tensors) if traced is None else traced.rounds(rounds, tensors)  # type: ignore[attr-defined]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.rounds, *tensors = inputs
        ctx.save_for_backward(*tensors, *output[: ctx.rounds.roles.carry])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        rounds, roles = ctx.rounds, ctx.rounds.roles
        saved = [x.view_as(x) for x in ctx.saved_tensors]
        tensors, states = saved[: -roles.carry], saved[-roles.carry :]
        _, streams, stay = parted(tensors, (roles.carry, roles.stream))
        marks, stacked, summed = parted(grad_outputs, (roles.carry, roles.stacked))
        # States are numbered so that the start is the first, or, backward, the last.
        end, before = (0, slice(1, None)) if rounds.backward else (-1, slice(None, -1))
        by = [x[end] for x in marks]
        anew = [x[before] for x in states], streams, [x[before] for x in marks], stacked
        given = (*by, *(x for part in anew for x in part), *stay, *summed)
        back = rounds.pulled(len(stay))
        found = _Rounds.apply(back, *given)
        start = 0 if back.backward else -1
        return None, *(x[start] for x in found[: roles.carry]), *found[roles.carry :]
