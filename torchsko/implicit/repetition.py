"""A step that is repeated, and its derivatives, which are steps that are repeated as well.

The vjp of a loop is a loop in the other direction, of the step's vjp; the jvp a loop in the same one, of
states with their tangents; what is mapped over is a loop whose step is mapped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchsko.implicit.jacobians import Flags, Tensors
from torchsko.implicit.step_roles import Roles, parted, pulled, pushed
from torchsko.utils.traced_tensor import TracedTensor


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
        """Of cotangents, where so many tensors stay; see `torchsko.implicit.step_roles.pulled`."""
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


class Repeated(torch.autograd.Function):
    """`Rounds.run` of tensors of which some are traced: one instruction of the program."""

    @staticmethod
    def forward(rounds: Rounds, *tensors: Tensor) -> Tensors:
        """An instruction of the program, or the loop written out."""
        traced = next((x for x in tensors if isinstance(x, TracedTensor)), None)
        if traced is None:
            return rounds.run(*tensors)
        return traced.record_loop(rounds, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        """Save what goes in, and all states."""
        ctx.rounds, *tensors = inputs
        ctx.save_for_backward(*tensors, *output[: ctx.rounds.roles.carry])
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)  # what does not move takes no part in the loop of tangents
        ctx.shapes = [x.shape for x in output]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        """Gradients, by a loop in the other direction."""
        rounds, roles = ctx.rounds, ctx.rounds.roles
        saved = [x.view_as(x) for x in ctx.saved_tensors]
        tensors, states = parted(saved, (len(saved) - roles.carry,))
        _, streams, stay = parted(tensors, (roles.carry, roles.stream))
        cotangents = [
            saved[0].new_zeros(shape) if y is None else y
            for y, shape in zip(grad_outputs, ctx.shapes, strict=True)
        ]
        marks, stacked, summed = parted(cotangents, (roles.carry, roles.stacked))
        # States are numbered so that the start is the first, or, backward, the last.
        end, before = (0, slice(1, None)) if rounds.backward else (-1, slice(None, -1))
        by = [x[end] for x in marks]
        anew = [x[before] for x in states], streams, [x[before] for x in marks], stacked
        given = (*by, *(x for part in anew for x in part), *stay, *summed)
        back = rounds.pulled(len(stay))
        found = Repeated.apply(back, *given)
        start = 0 if back.backward else -1
        return None, *(x[start] for x in found[: roles.carry]), *found[roles.carry :]

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensors:
        """Tangents, by a loop of states with theirs."""
        rounds, roles = ctx.rounds, ctx.rounds.roles
        # As in `torchsko.fused.functions.operator`: torch turns forward mode off in here, and outer
        # levels need it.
        with forward_ad._set_fwd_grad_enabled(True):
            tensors = [forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]
            state, streams, stay = parted(tensors, (roles.carry, roles.stream))
            own, *after = parted(grad_inputs[1:], (roles.carry, roles.stream))
            turn = [
                torch.zeros_like(x) if dx is None else dx for x, dx in zip(state, own, strict=True)
            ]
            moving, changing = ([dx for dx in part if dx is not None] for part in after)
            ahead = rounds.pushed(tuple(dx is not None for part in after for dx in part))
            found = Repeated.apply(ahead, *turn, *state, *streams, *moving, *stay, *changing)
        states, _, more = parted(found, (roles.carry, roles.carry))
        return *states, *more

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[Tensors, tuple[int, ...]]:
        """The loop whose step is mapped."""
        rounds, *tensors = arguments
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
        found = Repeated.apply(replace(rounds, step=step, halts=False), *state, *own[carry:])
        series = carry + rounds.roles.stacked
        return found, (1,) * series + (0,) * (len(found) - series)
