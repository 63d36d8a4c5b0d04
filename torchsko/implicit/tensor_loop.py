"""Loops over tensors with a fixed number of iterations, and their derivatives.

The VJP of a loop is a loop in the opposite direction of the VJP of the body. The JVP is a loop of
carries and their tangents. Under vmap the body is mapped. `torchsko.implicit.loop_roles` defines
carry, streamed, invariant, stacked and summed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchsko.implicit.jacobian_products import Flags, Tensors
from torchsko.implicit.loop_roles import LoopRoles, jvp_body, split_by_sizes, vjp_body
from torchsko.utils.traced_tensor import TracedTensor


@dataclass(frozen=True)
class TensorLoop:
    """A body that is evaluated a fixed number of times.

    Attributes:
        body: maps (carry, streamed, invariant) to (next carry, stacked, summed).
        roles: numbers of these inputs and outputs.
        count: number of iterations.
        reverse: whether iterations go from the last entry of the streamed inputs to the first.
            Carries are then numbered so that the start is the last.
        stops_early: whether a nonzero last carried tensor means that later iterations do not change
            the carry.
    """

    body: Callable[..., Tensors]
    roles: LoopRoles
    count: int
    reverse: bool
    stops_early: bool = False

    def run(self, *tensors: Tensor) -> Tensors:
        """All carries ``[count + 1, ...]``, the stacked ``[count, ...]`` and the summed outputs.

        Args:
            *tensors: the carry at the start, streamed inputs ``[count, ...]``, and invariant inputs.
        """
        roles = self.roles
        carry, streamed, invariant = split_by_sizes(tensors, (roles.carry, roles.stream))
        carries: list[Tensors] = [carry]
        stacked: list[Tensors] = []
        totals: Tensors = ()
        for k in reversed(range(self.count)) if self.reverse else range(self.count):
            found = self.body(*carry, *(x[k] for x in streamed), *invariant)
            carry, entries, terms = split_by_sizes(found, (roles.carry, roles.stacked))
            totals = tuple(map(torch.add, totals, terms)) if totals else terms
            carries.append(carry)
            stacked.append(entries)
        direction = slice(None, None, -1 if self.reverse else 1)
        series = [*zip(*carries[direction], strict=True), *zip(*stacked[direction], strict=True)]
        return (*map(torch.stack, series), *totals)  # type: ignore[arg-type]

    def vjp_loop(self, num_invariant: int) -> TensorLoop:
        """The loop of cotangents; see `torchsko.implicit.loop_roles.vjp_body`."""
        roles = self.roles
        needed = (True,) * (roles.stream + num_invariant)
        outputs = roles.carry + roles.stacked + roles.summed
        body = vjp_body(self.body, roles, needed, outputs, True)
        stream = 2 * roles.carry + roles.stream + roles.stacked
        vjp_roles = LoopRoles(roles.carry, stream, roles.stream, num_invariant)
        return TensorLoop(body, vjp_roles, self.count, not self.reverse)

    def jvp_loop(self, moving: Flags) -> TensorLoop:
        """The loop of carries and their tangents; see `torchsko.implicit.loop_roles.jvp_body`."""
        body, roles = jvp_body(self.body, self.roles, moving)
        return TensorLoop(body, roles, self.count, self.reverse, self.stops_early)


class TensorLoopFunction(torch.autograd.Function):
    """`TensorLoop.run` of tensors, some of which are traced: one instruction of the program."""

    @staticmethod
    def forward(loop: TensorLoop, *tensors: Tensor) -> Tensors:
        """Trace the loop as one instruction, or run it if no tensor is traced."""
        traced = next((x for x in tensors if isinstance(x, TracedTensor)), None)
        if traced is None:
            return loop.run(*tensors)
        return traced.record_loop(loop, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        """Save the inputs and all carries."""
        ctx.loop, *tensors = inputs
        ctx.save_for_backward(*tensors, *output[: ctx.loop.roles.carry])
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)  # inputs without a tangent take no part in the JVP loop
        ctx.shapes = [x.shape for x in output]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        """Gradients, by a loop in the opposite direction."""
        loop, roles = ctx.loop, ctx.loop.roles
        saved = [x.view_as(x) for x in ctx.saved_tensors]
        tensors, carries = split_by_sizes(saved, (len(saved) - roles.carry,))
        _, streamed, invariant = split_by_sizes(tensors, (roles.carry, roles.stream))
        cotangents = [
            saved[0].new_zeros(shape) if y is None else y
            for y, shape in zip(grad_outputs, ctx.shapes, strict=True)
        ]
        of_carries, of_stacked, of_summed = split_by_sizes(cotangents, (roles.carry, roles.stacked))
        last, before = (0, slice(1, None)) if loop.reverse else (-1, slice(None, -1))
        series = (
            *(x[before] for x in carries),
            *streamed,
            *(x[before] for x in of_carries),
            *of_stacked,
        )
        vjp_loop = loop.vjp_loop(len(invariant))
        final = (x[last] for x in of_carries)
        found = TensorLoopFunction.apply(vjp_loop, *final, *series, *invariant, *of_summed)
        first = 0 if vjp_loop.reverse else -1
        return None, *(x[first] for x in found[: roles.carry]), *found[roles.carry :]

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensors:
        """Tangents, by a loop of carries and their tangents."""
        loop, roles = ctx.loop, ctx.loop.roles
        # PyTorch disables forward mode here, which outer levels need.
        with forward_ad._set_fwd_grad_enabled(True):
            tensors = [forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]
            carry, streamed, invariant = split_by_sizes(tensors, (roles.carry, roles.stream))
            of_carry, *others = split_by_sizes(grad_inputs[1:], (roles.carry, roles.stream))
            tangents = [
                torch.zeros_like(x) if dx is None else dx
                for x, dx in zip(carry, of_carry, strict=True)
            ]
            of_streamed, of_invariant = ([dx for dx in part if dx is not None] for part in others)
            jvp_loop = loop.jvp_loop(tuple(dx is not None for part in others for dx in part))
            inputs = (*tangents, *carry, *streamed, *of_streamed, *invariant, *of_invariant)
            found = TensorLoopFunction.apply(jvp_loop, *inputs)
        carry_tangents, _, more = split_by_sizes(found, (roles.carry, roles.carry))
        return *carry_tangents, *more

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[Tensors, tuple[int, ...]]:
        """Run the loop of the mapped body."""
        loop, *tensors = arguments
        dims, (carry, stream) = in_dims[1:], (loop.roles.carry, loop.roles.stream)
        # The carry is mapped if any input is. Iterations remain the first dimension of streamed inputs.
        targets = [0] * carry + [1] * stream + [0] * (len(tensors) - carry - stream)
        moved = [
            x if d is None else x.movedim(d, target)
            for x, d, target in zip(tensors, dims, targets, strict=True)
        ]
        expanded = [
            x.expand(info.batch_size, *x.shape) if d is None else x
            for x, d in zip(moved[:carry], dims, strict=False)
        ]
        body_dims = (0,) * carry + tuple(None if d is None else 0 for d in dims[carry:])
        body = torch.vmap(loop.body, body_dims, randomness=info.randomness)
        mapped = replace(loop, body=body, stops_early=False)
        found = TensorLoopFunction.apply(mapped, *expanded, *moved[carry:])
        num_series = carry + loop.roles.stacked
        return found, (1,) * num_series + (0,) * (len(found) - num_series)
