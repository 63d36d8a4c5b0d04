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
from torchsko.bridge.kinematics import Kinematics
from torchsko.implicit.equation import implicit, is_compiled_or_traced
from torchsko.verbs.mechanism_inputs import fixed_fields, parameters_of, split_mechanism


def accelerations(state: Kinematics, gen_force: Tensor, f_ext: Tensor | None) -> Tensor:
    """Forward dynamics of the assembled model, with implicit derivatives.

    Args:
        state: the mechanism at a configuration and velocity.
        gen_force: joint forces minus passive forces, `[*batch, num_dof]`.
        f_ext: `[*batch, num_bodies, 6]`, or None.

    Returns:
        qdd, `[*batch, num_dof]`.
    """
    assert state.qd is not None
    equation = _DynamicsEquation(fixed_fields(state.mech))
    forces = () if f_ext is None else (f_ext,)
    inputs = (
        *parameters_of(state.mech),
        state.tree_q,
        state.qd,
        gen_force,
        *state.loop_motion,
        *forces,
    )
    # The tape of the recursion is shorter than that of Newton steps.
    return equation.solution(*inputs) if is_compiled_or_traced() else implicit(equation, *inputs)


@dataclass(frozen=True, eq=False)
class _DynamicsEquation:
    """The equation with inputs (*parameters, tree_q, qd, gen_force, [X, xi], [f_ext]).

    Attributes:
        fixed: the fields of the mechanism that are not parameters.
    """

    fixed: dict[str, Any]

    def split(self, inputs: tuple[Tensor, ...]) -> tuple[Kinematics, Tensor, tuple[Tensor, ...]]:
        """The mechanism with the given parameters at the state, gen_force and external forces."""
        mech, (tree_q, qd, gen_force, *rest) = split_mechanism(self.fixed, inputs)
        num_loop_inputs = 0 if mech.closing is None else 2
        state = Kinematics(mech, tree_q, qd).with_loop_motion(*rest[:num_loop_inputs])
        return state, gen_force, tuple(rest[num_loop_inputs:])

    def solution(self, *inputs: Tensor) -> Tensor:
        """The accelerations qdd, by the articulated-body sweeps."""
        state, gen_force, forces = self.split(inputs)
        return algorithms.forward_dynamics(model_at(state, *forces), gen_force)

    def residual(self, x: Tensor, *inputs: Tensor) -> Tensor:
        """Inverse dynamics minus the joint forces."""
        state, gen_force, forces = self.split(inputs)
        return algorithms.inverse_dynamics(model_at(state, *forces), x) - gen_force

    def solve(self, rhs: Tensor, x: Tensor, *inputs: Tensor, transposed: bool) -> Tensor:
        """MM^-1 rhs."""
        state, _, _ = self.split(inputs)
        return algorithms.innovations(model_at(state, at_rest=True)).solve(rhs)
