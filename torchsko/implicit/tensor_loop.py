"""Loops over tensors with a fixed number of iterations, and their derivatives.

The VJP of a loop is a loop in the opposite direction of the VJP of the body. The JVP is a loop of
carries and their tangents. Under vmap the body is mapped. `torchsko.implicit.loop_roles` defines
carry, streamed, invariant, stacked and summed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import isqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchsko.implicit.jacobian_products import Flags, Tensors
from torchsko.implicit.loop_roles import LoopRoles, jvp_body, split_by_sizes, vjp_body
from torchsko.utils.traced_tensor import TracedTensor

MAX_STORED_SCALARS = 2048
"""Scalars of the carries of all iterations above which the backward pass recomputes a part of them."""


@dataclass(frozen=True)
class TensorLoop:
    """A body that is evaluated a fixed number of times.

    Attributes:
        body: maps (carry, streamed, invariant) to (next carry, stacked, summed).
        roles: numbers of these inputs and outputs.
        count: number of iterations.
        reverse: whether iterations go from the last entry of the streamed inputs to the first.
            Carries are then numbered so that the start is the last.
        stops_early: whether later iterations do not change the carry if all entries of the last carried
            tensor are nonzero.
        key: identifies the loop, also when it is mapped or shortened.
        differentiated: for the loop of a VJP, the key of the loop that it differentiates.
    """

    body: Callable[..., Tensors]
    roles: LoopRoles
    count: int
    reverse: bool
    stops_early: bool = False
    key: object = field(default_factory=object)
    differentiated: object = None

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

    def vjp_loop(self, needed: Flags) -> TensorLoop:
        """The loop of cotangents; see `torchsko.implicit.loop_roles.vjp_body`."""
        roles = self.roles
        body = vjp_body(self.body, roles, needed, roles.carry + roles.stacked + roles.summed, True)
        stream = 2 * roles.carry + roles.stream + roles.stacked
        num_streamed = sum(needed[: roles.stream])
        vjp_roles = LoopRoles(roles.carry, stream, num_streamed, sum(needed) - num_streamed)
        reverse = not self.reverse
        return TensorLoop(body, vjp_roles, self.count, reverse, differentiated=self.key)

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
        needed = tuple(ctx.needs_input_grad[1 + roles.carry :])
        cotangents = _Cotangents(
            tuple(x[last] for x in of_carries),
            tuple(x[before] for x in of_carries),
            of_stacked,
            of_summed,
        )
        carries = tuple(x[before] for x in carries)
        found = _StoredLoop(loop, needed, carries, streamed, invariant).gradients(cotangents)
        gradients = iter(found[roles.carry :])
        return None, *found[: roles.carry], *(next(gradients) if flag else None for flag in needed)

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
        mapped = replace(loop, body=body)
        found = TensorLoopFunction.apply(mapped, *expanded, *moved[carry:])
        num_series = carry + loop.roles.stacked
        return found, (1,) * num_series + (0,) * (len(found) - num_series)


class _Cotangents(NamedTuple):
    """Cotangents of the last carry, of the carries before each iteration, of stacked and summed outputs."""

    last: Tensors
    before: Tensors
    stacked: Tensors
    summed: Tensors


class _StoredLoop(NamedTuple):
    """A loop with its inputs and the carries of all iterations, from which gradients are computed.

    Attributes:
        loop: the loop.
        needed: flags the streamed and invariant inputs whose gradients are computed.
        carries: the carry before each iteration, `[count, ...]`.
        streamed: streamed inputs, `[count, ...]`.
        invariant: invariant inputs.
    """

    loop: TensorLoop
    needed: Flags
    carries: Tensors
    streamed: Tensors
    invariant: Tensors

    def gradients(self, cotangents: _Cotangents) -> Tensors:
        """Gradients of the start and of the needed inputs."""
        count = self.loop.count
        is_large = count * sum(x[0].numel() for x in self.carries) > MAX_STORED_SCALARS
        by = _gradients_by_segments if is_large and count > 3 else _gradients_in_one_loop
        return by(self, cotangents)


def _gradients_in_one_loop(stored: _StoredLoop, cotangents: _Cotangents) -> Tensors:
    """Gradients from all stored carries."""
    loop, needed, carries, streamed, invariant = stored
    last, before, stacked, summed = cotangents
    vjp_loop = loop.vjp_loop(needed)
    series = (*carries, *streamed, *before, *stacked)
    found = TensorLoopFunction.apply(vjp_loop, *last, *series, *invariant, *summed)
    first, count = 0 if vjp_loop.reverse else -1, loop.roles.carry
    return (*(x[first] for x in found[:count]), *found[count:])


def _gradients_by_segments(stored: _StoredLoop, cotangents: _Cotangents) -> Tensors:
    """Gradients, with the carries of each segment recomputed from its first one.

    Of n iterations, sqrt(n) carries are stored, and sqrt(n) more while a segment runs backward.

    Reference: Griewank and Walther 2008, chapter 12 (checkpoints).
    """
    loop, needed, carries, streamed, invariant = stored
    roles, every = loop.roles, _segment_length(loop.count)
    num_segments, rest = divmod(loop.count, every)
    # A reverse loop ends with its first entries.
    start, stop = (rest, loop.count) if loop.reverse else (0, num_segments * every)
    first = every - 1 if loop.reverse else 0
    num_streamed = sum(needed[: roles.stream])

    def gradients(count: int, *tensors: Tensor) -> Tensors:
        """Gradients of a segment from its first carry."""
        last, carry, streamed, before, stacked, others = split_by_sizes(
            tensors, (roles.carry, roles.carry, roles.stream, roles.carry, roles.stacked)
        )
        invariant, summed = (
            others[: len(needed) - roles.stream],
            others[len(needed) - roles.stream :],
        )
        segment = replace(loop, count=count)
        found = TensorLoopFunction.apply(segment, *carry, *streamed, *invariant)
        own = slice(1, None) if loop.reverse else slice(None, -1)
        carries = tuple(x[own] for x in found[: roles.carry])
        part = _StoredLoop(segment, needed, carries, streamed, invariant)
        return _gradients_in_one_loop(part, _Cotangents(last, before, stacked, summed))

    constant = (*invariant, *cotangents.summed)
    series = (*streamed, *cotangents.before, *cotangents.stacked)
    last, of_series, sums = cotangents.last, (), ()
    if rest:
        span = slice(0, rest) if loop.reverse else slice(stop, None)
        at = rest - 1 if loop.reverse else stop
        found = gradients(
            rest, *last, *(x[at] for x in carries), *(x[span] for x in series), *constant
        )
        last, of_series, sums = split_by_sizes(found, (roles.carry, num_streamed))
    chunks = [x[start:stop].unflatten(0, (num_segments, every)) for x in (*carries, *series)]
    starts = [x[:, first] for x in chunks[: roles.carry]]
    stream = len(starts) + len(series)
    segments = TensorLoop(
        partial(gradients, every),
        LoopRoles(roles.carry, stream, num_streamed, sum(needed) - num_streamed),
        num_segments,
        not loop.reverse,
    )
    found = TensorLoopFunction.apply(segments, *last, *starts, *chunks[roles.carry :], *constant)
    of_carry, of_chunks, totals = split_by_sizes(found, (roles.carry, num_streamed))
    joined = [x.flatten(0, 1) for x in of_chunks]
    if rest:
        pairs = zip(of_series, joined, strict=True)
        joined = [torch.cat((x, y) if loop.reverse else (y, x)) for x, y in pairs]
        totals = tuple(map(torch.add, totals, sums))
    return (*(x[-1 if loop.reverse else 0] for x in of_carry), *joined, *totals)


def _segment_length(count: int) -> int:
    """About the square root of a number of iterations, if possible a divisor of it."""
    root = isqrt(count)
    divisors = [k for k in range(root // 2 + 1, 2 * root) if count % k == 0]
    return min(divisors, key=lambda k: abs(k - root), default=root)
