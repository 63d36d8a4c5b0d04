"""VJP of fused forward dynamics by the implicit function theorem; see `torchsko.implicit.equation`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchsko.algorithms import innovations
from torchsko.bridge.assemble import model_at
from torchsko.bridge.kinematics import Kinematics
from torchsko.implicit.equation import implicit_vjp
from torchsko.implicit.jacobian_products import Flags, Pullback, Tensors
from torchsko.verbs.dynamics import forward_dynamics, inverse_dynamics

SplitInputs = Callable[[Tensors], Sequence[Any]]
"""Maps the inputs of a kernel to the mechanism with its parameters, followed by the arguments."""


@dataclass(frozen=True, eq=False)
class DynamicsEquation:
    """Inverse dynamics minus tau equals zero; the unknown is qdd.

    Attributes:
        split: maps the inputs (q, qd, tau, [f_ext], *parameters) to (mechanism, q, qd, tau, [f_ext]).
    """

    split: SplitInputs

    def solution(self, *inputs: Tensor) -> Tensor:
        """Forward dynamics, qdd."""
        return forward_dynamics(*self.split(inputs))

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Inverse dynamics minus the joint forces."""
        mech, q, qd, tau, *f_ext = self.split(inputs)
        return inverse_dynamics(mech, q, qd, x, *f_ext) - tau

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """M^-1 rhs by the innovations factorisation; M is symmetric."""
        mech, q, *_ = self.split(inputs)
        return innovations(model_at(Kinematics.of(mech, q))).solve(rhs)


def implicit_pullback(split: SplitInputs) -> Pullback:
    """Gradients of forward dynamics at the saved acceleration; ``split`` as for `DynamicsEquation`."""
    equation = DynamicsEquation(split)

    def pullback(needed: Flags, inputs: Tensors, outputs: Tensors, by: Tensors) -> Tensors:
        return implicit_vjp(equation, needed, inputs, outputs[0], by[0])

    return pullback
