r"""Derivatives of what an equation defines, without differentiating what solves it.

Where R(x, u) = 0 gives x for every u, and R_x is regular,

.. math::
    dx = -R_x^{-1} R_u\, du,

so a cotangent lambda of x goes to u as minus the vector-Jacobian product of R, at fixed x, with
:math:`\mu = R_x^{-*} \lambda`. Saved are u and x; what found x leaves no tape. Eager functions and kernels
take both products from here.

Reference: A. Griewank and A. Walther, *Evaluating Derivatives*, 2nd edition, SIAM, 2008, section 15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]

from torchsko.implicit.jacobian_products import Tensors, restricted, tangents_along
from torchsko.utils.dtype import without_autocast


class Equation(Protocol):
    """R(x, *inputs) = 0, any batch dimensions in front; it holds nothing that has derivatives."""

    def solution(self, *inputs: Tensor) -> Tensor:
        """The x that solves it, `[*batch, n]`."""
        ...

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """R, `[*batch, n]`."""
        ...

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """R_x^-1 rhs, or R_x^-* rhs, at a solution x, `[*batch, n]`; differentiable itself."""
        ...


def implicit(equation: Equation, *inputs: Tensor) -> Tensor:
    """The solution of an equation; derivatives of any order, in every mode, by the equation.

    Where torch.compile or torch.jit trace, they are those of the tape of ``equation.solution``: Dynamo cannot
    trace a Function that has both derivatives, and torch.jit none that is given an object.

    Args:
        equation: the equation.
        *inputs: everything in it that derivatives shall reach.

    Returns:
        ``equation.solution(*inputs)``.
    """
    if torch.compiler.is_compiling() or is_tracing():
        return equation.solution(*inputs)
    return _Solution.apply(equation, *inputs)


def implicit_vjp(
    equation: Equation,
    needed: Sequence[bool],
    inputs: Sequence[Tensor],
    solution: Tensor,
    cotangent: Tensor,
) -> Tensors:
    """Gradients of the inputs that need one, from a cotangent of the solution.

    Args:
        equation: the equation.
        needed: for each input, whether its gradient is asked for.
        inputs: of the equation.
        solution: x, `[*batch, n]`, which solves it.
        cotangent: of x, `[*batch, n]`.

    Returns:
        The gradients asked for, each of its input's shape; zero where the residual does not depend on it.
    """
    mu = equation.solve(cotangent, solution, *inputs, transposed=True)
    part, chosen = restricted(_at(equation, solution), inputs, needed)
    return torch.func.vjp(part, *chosen)[1]((-mu,))


def implicit_jvp(
    equation: Equation,
    inputs: Sequence[Tensor],
    solution: Tensor,
    tangents: Sequence[Tensor | None],
) -> Tensor:
    """Tangent of the solution, from those of the inputs; None stands for zero."""
    part, chosen = restricted(_at(equation, solution), inputs, [dx is not None for dx in tangents])
    (moved,) = tangents_along(part, chosen, tuple(dx for dx in tangents if dx is not None))
    return -equation.solve(moved, solution, *inputs, transposed=False)


def _at(equation: Equation, solution: Tensor) -> Any:
    """The residual as a function of the inputs."""
    return lambda *inputs: (equation.residual(solution, *inputs),)


class _Solution(torch.autograd.Function):
    """Solution of an equation, with the derivatives of this module."""

    @staticmethod
    def forward(equation: Equation, *inputs: Tensor) -> Tensor:
        return equation.solution(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.equation, *tensors = inputs
        ctx.save_for_backward(output, *tensors)
        ctx.save_for_forward(output, *tensors)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        # Aliases: torch.func cannot wrap again what it saved at a level that has ended since.
        solution, *inputs = (x.view_as(x) for x in ctx.saved_tensors)
        needed = ctx.needs_input_grad[1:]
        found = iter(implicit_vjp(ctx.equation, needed, inputs, solution, grad_outputs[0]))
        return None, *(next(found) if flag else None for flag in needed)

    @staticmethod
    @without_autocast
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        # torch turns forward mode off in here, which would make jvp of jvp zero without a word. It is
        # turned on again for the levels outside; the one being differentiated is taken off first.
        with forward_ad._set_fwd_grad_enabled(True):
            solution, *inputs = (_primal(x) for x in ctx.saved_tensors)
            tangents = [None if dx is None else _primal(dx) for dx in grad_inputs[1:]]
            return implicit_jvp(ctx.equation, inputs, solution, tangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        equation, *inputs = arguments
        return _Solution.apply(_Mapped(equation, in_dims[1:], info.randomness), *inputs), 0


@dataclass(frozen=True)
class _Mapped:
    """An equation over a mapped dimension, the first of its solution.

    PyTorch's own rule (`generate_vmap_rule`) runs derivatives within the vmap, where forward mode cannot
    tell its levels.
    """

    equation: Equation
    dims: tuple[int | None, ...]
    randomness: str

    def solution(self, *inputs: Tensor) -> Tensor:
        return self._over(self.equation.solution)(*inputs)

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        return self._over(self.equation.residual, 0)(x, *inputs)

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        solve = partial(self.equation.solve, transposed=transposed)
        return self._over(solve, 0, 0)(rhs, x, *inputs)

    def _over(self, fn: Callable[..., Tensor], *first: int) -> Callable[..., Tensor]:
        return torch.vmap(fn, (*first, *self.dims), randomness=self.randomness)


def _primal(x: Tensor) -> Tensor:
    return forward_ad.unpack_dual(x, level=0).primal
