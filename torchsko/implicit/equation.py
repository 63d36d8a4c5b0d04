r"""Implicit differentiation: derivatives of the solution of an equation, without a tape of its solver.

If R(x, u) = 0 defines x as a function of u, and R_x is regular, then

.. math::
    dx = -R_x^{-1} R_u\, du.

The gradient by u for a cotangent lambda of x is therefore minus the vector-Jacobian product of R by u, at
fixed x, with :math:`\mu = R_x^{-*} \lambda`. Only u and x are saved. Eager functions and kernels both use
these products.

Under torch.compile the derivatives are those of Newton steps from the solution, whose value is zero. If x has
correct derivatives up to order k, then x - R_x^-1 R has correct ones up to order 2 k + 1.

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
from torch.overrides import has_torch_function_unary

from torchsko.implicit.jacobian_products import Tensors, fix_inputs, jvp_by_double_vjp, vjp
from torchsko.utils.dtype import without_autocast
from torchsko.utils.traced_tensor import TracedTensor


class Equation(Protocol):
    """An equation R(x, *inputs) = 0 for x, with any leading batch dimensions.

    Every tensor that derivatives shall reach is one of the inputs, none an attribute.
    """

    def solution(self, *inputs: Tensor) -> Tensor:
        """The solution x, `[*batch, n]`."""
        ...

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """The residual R, `[*batch, n]`."""
        ...

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """R_x^-1 rhs, or R_x^-* rhs if transposed, at a solution x, `[*batch, n]`; must be differentiable."""
        ...


def implicit(equation: Equation, *inputs: Tensor) -> Tensor:
    """The solution of an equation, with implicit derivatives of any order in forward and reverse mode.

    Under torch.compile and torch.jit the derivatives are right up to the third order, by two steps of
    Newton's method from the solution. Dynamo cannot trace an autograd.Function with both a JVP and a VJP, and
    torch.jit cannot trace one with an argument that is an object.

    Args:
        equation: the equation.
        *inputs: its inputs.

    Returns:
        ``equation.solution(*inputs)``.
    """
    if is_compiled_or_traced():
        return _by_newton_steps(equation, *inputs)
    if has_torch_function_unary(None):
        # A mode that replaces captured tensors sees torch functions alone.
        inputs = tuple(x.view_as(x) for x in inputs)
    return _Solution.apply(equation, *inputs)


def is_compiled_or_traced() -> bool:
    """True if torch.compile or torch.jit traces the caller."""
    return torch.compiler.is_compiling() or is_tracing()


def _by_newton_steps(equation: Equation, *inputs: Tensor) -> Tensor:
    """The solution with attached Newton steps; only their derivatives differ from zero."""
    constant = [x.detach() for x in inputs]
    x = equation.solution(*constant).detach()
    for at in (constant, inputs):
        residual = equation.residual(x, *inputs)
        x = x - equation.solve(residual - residual.detach(), x, *at, transposed=False)
    return x


def implicit_vjp(
    equation: Equation,
    needed: Sequence[bool],
    inputs: Sequence[Tensor],
    solution: Tensor,
    cotangent: Tensor,
) -> Tensors:
    """Gradients of the needed inputs for a cotangent of the solution.

    Args:
        equation: the equation.
        needed: for each input, whether its gradient is computed.
        inputs: inputs of the equation.
        solution: the solution x, `[*batch, n]`.
        cotangent: cotangent of x, `[*batch, n]`.

    Returns:
        The gradients of the needed inputs, each of the shape of its input.
    """
    mu = equation.solve(cotangent, solution, *inputs, transposed=True)
    part, chosen = fix_inputs(_at(equation, solution), inputs, needed)
    return vjp(part, *chosen)[1]((-mu,))


def implicit_jvp(
    equation: Equation,
    inputs: Sequence[Tensor],
    solution: Tensor,
    tangents: Sequence[Tensor | None],
) -> Tensor:
    """Tangent of the solution for tangents of the inputs; None is a zero tangent."""
    part, chosen = fix_inputs(_at(equation, solution), inputs, [dx is not None for dx in tangents])
    moving = tuple(dx for dx in tangents if dx is not None)
    (change,) = jvp_by_double_vjp(part, chosen, moving)
    return -equation.solve(change, solution, *inputs, transposed=False)


def _at(equation: Equation, solution: Tensor) -> Any:
    """The residual at a fixed solution, as a function of the inputs."""
    return lambda *inputs: (equation.residual(solution, *inputs),)


class _Solution(torch.autograd.Function):
    """Autograd function of the solution of an equation."""

    @staticmethod
    def forward(equation: Equation, *inputs: Tensor) -> Tensor:
        traced = next((x for x in inputs if isinstance(x, TracedTensor)), None)
        if traced is None:
            return equation.solution(*inputs)
        return traced.record_solution(lambda: equation.solution(*inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.equation, *tensors = inputs
        ctx.save_for_backward(output, *tensors)
        ctx.save_for_forward(output, *tensors)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        # Aliases, since torch.func cannot wrap a tensor again that it saved at a level that has ended.
        solution, *inputs = (x.view_as(x) for x in ctx.saved_tensors)
        needed = ctx.needs_input_grad[1:]
        found = iter(implicit_vjp(ctx.equation, needed, inputs, solution, grad_outputs[0]))
        return None, *(next(found) if flag else None for flag in needed)

    @staticmethod
    @without_autocast
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        # PyTorch disables forward mode here, so a JVP of a JVP would silently be zero. It is enabled again
        # for outer levels, after the tangents of this level are removed.
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
    """An equation under vmap; the mapped dimension is the first of its solution.

    PyTorch's rule (`generate_vmap_rule`) computes derivatives within the vmap, where the levels of forward
    mode are mixed up.
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
