"""The derivatives of fused forward dynamics, by its equation instead of a tape; see `torchsko.implicit`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchsko.algorithms import innovations
from torchsko.bridge.assemble import model_at
from torchsko.fused.workshop import Workshop
from torchsko.implicit.equation import implicit_vjp
from torchsko.implicit.jacobians import Flags, Pullback, Tensors
from torchsko.verbs.dynamics import forward_dynamics, inverse_dynamics


@dataclass(frozen=True, eq=False)
class Balance:
    """Forward dynamics as an equation, of (q, qd, tau, [f_ext], *parameters); see `torchsko.implicit`."""

    workshop: Workshop

    def solution(self, *inputs: Tensor) -> Tensor:
        """Qdd."""
        return forward_dynamics(*self.workshop.split(inputs, scalar=True))

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Inverse dynamics less the joint forces."""
        mech, q, qd, tau, *f_ext = self.workshop.split(inputs, scalar=True)
        return inverse_dynamics(mech, q, qd, x, *f_ext) - tau

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """M^-1 rhs."""
        mech, q, *_ = self.workshop.split(inputs, scalar=True)
        return innovations(model_at(mech, q)).solve(rhs)


def implicit_pullback(workshop: Workshop) -> Pullback:
    """Gradients of forward dynamics by its equation, at the acceleration that is saved."""
    equation = Balance(workshop)

    def pullback(needed: Flags, inputs: Tensors, outputs: Tensors, by: Tensors) -> Tensors:
        return implicit_vjp(equation, needed, inputs, outputs[0], by[0])

    return pullback
