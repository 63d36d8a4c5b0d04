r"""Forward dynamics as the solution of the equations of motion.

.. math:: R(\ddot q;\, q, \dot q, T, f_{ext}, parameters) = ID(q, \dot q, \ddot q, f_{ext}) - T, \qquad
    R_{\ddot q} = \mathcal{M},

with MM the mass matrix, which is symmetric. The inputs include all parameters of the mechanism, also those
that the residual does not depend on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchsko import algorithms
from torchsko.bridge.assemble import model_at
from torchsko.implicit.equation import implicit, is_compiled_or_traced
from torchsko.mechanism.mechanism import Mechanism
from torchsko.verbs.mechanism_inputs import fixed_fields, parameters_of, split_mechanism


def accelerations(
    mech: Mechanism, q: Tensor, qd: Tensor, gen_force: Tensor, f_ext: Tensor | None
) -> Tensor:
    """Forward dynamics of the assembled model, with implicit derivatives.

    Args:
        mech: the mechanism.
        q: `[*batch, num_q]`.
        qd: `[*batch, num_dof]`.
        gen_force: joint forces minus passive forces, `[*batch, num_dof]`.
        f_ext: `[*batch, num_bodies, 6]`, or None.

    Returns:
        qdd, `[*batch, num_dof]`.
    """
    equation = _DynamicsEquation(fixed_fields(mech))
    forces = () if f_ext is None else (f_ext,)
    inputs = (*parameters_of(mech), q, qd, gen_force, *forces)
    # The tape of the recursion is shorter than that of Newton steps.
    return equation.solution(*inputs) if is_compiled_or_traced() else implicit(equation, *inputs)


@dataclass(frozen=True, eq=False)
class _DynamicsEquation:
    """The equation with inputs (*parameters, q, qd, gen_force, [f_ext]).

    Attributes:
        fixed: the fields of the mechanism that are not parameters.
    """

    fixed: dict[str, Any]

    def split(self, inputs: tuple[Tensor, ...]) -> tuple[Mechanism, tuple[Tensor, ...]]:
        """The mechanism with the given parameters, and the other inputs."""
        return split_mechanism(self.fixed, inputs)

    def solution(self, *inputs: Tensor) -> Tensor:
        """The accelerations qdd, by the articulated-body sweeps."""
        mech, (q, qd, gen_force, *forces) = self.split(inputs)
        return algorithms.forward_dynamics(model_at(mech, q, qd, *forces), gen_force)

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Inverse dynamics minus the joint forces."""
        mech, (q, qd, gen_force, *forces) = self.split(inputs)
        return algorithms.inverse_dynamics(model_at(mech, q, qd, *forces), x) - gen_force

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """MM^-1 rhs."""
        mech, (q, *_) = self.split(inputs)
        return algorithms.innovations(model_at(mech, q)).solve(rhs)
